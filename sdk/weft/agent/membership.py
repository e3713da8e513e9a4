"""An agent's side of its talk with the server: it registers, says that it lives, and learns what it is to hold.

What an agent holds it keeps while the server cannot be reached: training goes on while the server restarts. It drops
everything only when the server answers that it does not know the agent.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from typing import Protocol, TypeVar
from uuid import uuid4

import httpx
from pydantic import ValidationError

from weft.agent.alive import AliveFile
from weft.agent.reporter import Reporter
from weft.agent.retry import UnreachableError, retried
from weft.api.agent import MINIMAL, Heartbeat, Orders, Registered, Registration
from weft.api.base import Model
from weft.api.problem import problem_code

_log = logging.getLogger("weft.membership")

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 5.0
"""For a heartbeat's answer, beyond what the server waits: then another connection is tried. What was sent on one that
was cut comes again only after pauses that double, and a server that stood still answers the next call as well."""

MOST_TOKENS = 4096
"""Of allocations: the oldest are over by far."""

_R = TypeVar("_R")
_M = TypeVar("_M", bound=Model)
REGISTER_TIMEOUT_S = 10.0


class Holder(Protocol):
    """Who carries out orders. Both methods are called on the membership's thread and must be quick."""

    def hold(self, orders: Orders) -> None:
        """Everything that is to be held now: start what is lacking, stop what is not in it any more."""

    def lost(self) -> None:
        """The server does not know this agent (any more): drop everything. It is registered again by itself."""


class Members(Protocol):
    """The part of `Membership` that a daemon uses."""

    def run(self, stop: threading.Event) -> None: ...

    def reporter(self, allocation_id: str, term: int) -> Reporter: ...

    def close(self) -> None: ...


Join = Callable[[Registration, Holder], Members]


class _UnknownAgentError(Exception):
    """The server does not know this agent."""


class _Tokens(httpx.Auth):
    """What each call is made with: the credential of the agent or allocation in its path, or the token to join with."""

    def __init__(self, join: str | None) -> None:
        self._join = join
        self._own: dict[str, str] = {}
        self._lock = threading.Lock()

    def know(self, identifier: str, token: str | None) -> None:
        if token is not None:
            with self._lock:
                self._own.pop(identifier, None)  # What was told again, as the agent's own, is forgotten last.
                self._own[identifier] = token
                while len(self._own) > MOST_TOKENS:
                    self._own.pop(next(iter(self._own)))

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        with self._lock:
            own = [self._own[part] for part in request.url.path.split("/") if part in self._own]
        token = own[0] if own else self._join
        if token is not None:
            request.headers["Authorization"] = f"Bearer {token}"
        yield request


class Membership:
    """One agent's membership. `transport` replaces the network, for tests.

    The file `alive` is touched before every call, also while none is answered, as long as the agent's work goes on.
    """

    def __init__(
        self,
        server: str,
        registration: Registration,
        holder: Holder,
        *,
        token: str | None = None,
        alive: AliveFile | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._registration = registration.model_copy(update={"nonce": registration.nonce or uuid4().hex})
        self._alive = alive
        self._holder = holder
        self._agent: str | None = None
        """As which it is registered."""
        self._tokens = _Tokens(token)
        self._client = httpx.Client(
            base_url=server,
            auth=self._tokens,
            transport=transport,
            timeout=httpx.Timeout(REGISTER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
        )

    def run(self, stop: threading.Event) -> None:
        """Registers and heartbeats until `stop` is set, then takes leave. Never gives up; what fails is logged."""

        def leave() -> None:
            stop.wait()
            self._leave()

        leaving = threading.Thread(target=leave, name="leave", daemon=True)
        leaving.start()
        while not stop.is_set():
            registered = self._retried(stop, self._register)
            if registered is None:
                break
            _log.info("registered as %s (agent %s)", self._registration.name, registered.id)
            self._tokens.know(registered.id, registered.token)
            self._agent = registered.id
            try:
                self._beat(stop, registered)
            except _UnknownAgentError:
                if not stop.is_set():
                    _log.warning("the server does not know agent %s: everything is dropped", registered.id)
                    self._holder.lost()
        leaving.join()
        self._leave()  # It may have been registered meanwhile.

    def reporter(self, allocation_id: str, term: int) -> Reporter:
        """Who brings the facts about one allocation to the server; the caller closes it."""
        return Reporter(self._client, allocation_id, term)

    def close(self) -> None:
        """Closes the connections; after `run` has returned and every reporter is closed."""
        self._client.close()

    def _register(self) -> Registered:
        response = self._post("/v1/agents", self._registration.model_dump_json(), REGISTER_TIMEOUT_S)
        return _parsed(Registered, response)

    def _beat(self, stop: threading.Event, registered: Registered) -> None:
        known = 0
        path = f"/v1/agents/{registered.id}/heartbeat"
        wait_s = min(registered.heartbeat_interval_s, 10.0)
        timeout_s = wait_s + min(registered.lost_after_s, ANSWER_TIMEOUT_S)

        def call() -> Orders:
            body = Heartbeat(known=known, wait_s=wait_s).model_dump_json()
            answer = self._post(path, body, timeout_s)
            return Orders(version=known, allocations=[]) if answer.status_code == 204 else _parsed(Orders, answer)

        while not stop.is_set():
            orders = self._retried(stop, call)
            if orders is not None and orders.version != known:
                known = orders.version
                for allocation in orders.allocations:
                    self._tokens.know(allocation.id, allocation.token)
                self._tokens.know(registered.id, registered.token)
                self._holder.hold(orders)

    def _leave(self) -> None:
        """Takes leave, if that is not done: a heartbeat that waits for orders is answered by it. Without a reason: with
        one it counts as a loss, of a process whose parent tells how it ended."""
        agent, self._agent = self._agent, None
        if agent is None:
            return
        try:
            self._client.delete(f"/v1/agents/{agent}", timeout=1.0)
        except httpx.HTTPError as error:
            _log.info("left without a word to the server: %s", error)

    def _post(self, path: str, body: str, timeout_s: float) -> httpx.Response:
        if self._alive is not None:
            self._alive.touch()
        try:
            response = self._client.post(
                path,
                content=body,
                headers={"Content-Type": "application/json", "Prefer": MINIMAL},
                timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S)),
            )
        except httpx.HTTPError as error:
            raise UnreachableError(f"{type(error).__name__}: {error}") from error
        if response.is_client_error and problem_code(response.content) in {"unknown-agent", "unknown-credential"}:
            raise _UnknownAgentError
        if response.is_error:
            raise UnreachableError(f"{path} was answered by {response.status_code}: {response.text[:500]}")
        return response

    def _retried(self, stop: threading.Event, call: Callable[[], _R]) -> _R | None:
        """What `call` returns, tried until it does; None once `stop` is set."""
        try:
            return retried(call, stop, _log, f"server {self._client.base_url}")
        except UnreachableError:
            return None


def joining(server: str | None, *, token: str | None, alive: AliveFile | None) -> Join:
    """Who makes the membership of a daemon with these settings. Raises ValueError where no server is given."""
    if server is None:
        raise ValueError("server: none is given")
    return lambda registration, holder: Membership(server, registration, holder, token=token, alive=alive)


def _parsed(model: type[_M], response: httpx.Response) -> _M:
    try:
        return model.from_answer(response.content)
    except ValidationError as error:
        raise UnreachableError(
            f"{response.url} was answered by something that is not {model.__name__}: {error}"
        ) from error
