"""Which requests come in: the right Host on loopback, no page of another site, no body that is compressed, too large or
too slow, no more of submitted jobs at once than there is room for. Whose they are is for `weft_server.access`.

Plain ASGI: every request passes here before any of it is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weft_server.access import rule_of
from weft_server.problems import ProblemError, problem, respond
from weft_server.queues import BodyLimit, FairQueue, Shares
from weft_server.refusals import FullError
from weft_server.users import USER, Party, party_of

SLOWEST = 16 << 10
"""Bytes a second that a body has to come at in the long run: a tenth of a poor mobile link."""
READING = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""
AGENT_CALLS = 8
"""Under way at the same time, of an agent and of each allocation: a heartbeat, a report and documents."""
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


Check = Callable[[Scope, Receive], Receive]
"""Looks at an HTTP request; what the rest of it is received by. Raises ProblemError."""


class Gate:
    """Answers requests that the check refuses, and lets all others pass."""

    def __init__(self, app: ASGIApp, check: Check) -> None:
        self._app = app
        self._check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                receive = self._check(scope, receive)
            except ProblemError as error:
                await respond(error.problem, error.headers)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def host_check(names: frozenset[str]) -> Check:
    """Refuses requests whose Host header is no name of this machine's loopback.

    A page in a browser could otherwise reach the server under a name of its own that resolves to 127.0.0.1.
    """

    def check(scope: Scope, receive: Receive) -> Receive:
        host = Headers(scope=scope).get("host", "")
        name = host if host.endswith("]") else host.rsplit(":", 1)[0]
        if name.lower() not in names:
            raise ProblemError("wrong-host", f"Host {host!r} is none of {', '.join(sorted(names))}")
        return receive

    return check


def check_origin(scope: Scope, receive: Receive) -> Receive:
    """Refuses requests that change something where a browser sends them for a page of another site.

    Pages need nobody's leave to send some requests; a browser says with Origin whose page it is. Programs send none.
    """
    if scope["method"] not in READING:
        headers = Headers(scope=scope)
        own = headers.get("host", "").lower()
        foreign = [each for each in headers.getlist("origin") if each.lower().partition("://")[2] != own]
        if foreign:
            detail = f"Origin {foreign[0][:200]!r} is another site than {own!r}: its pages change nothing here"
            raise ProblemError("wrong-origin", detail)
    return receive


def body_check(limit: Callable[[str, str], int | None]) -> Check:
    """Refuses bodies that are compressed, and those above `limit(method, path)` bytes: by Content-Length, else while
    they come; None is no limit.
    """

    def check(scope: Scope, receive: Receive) -> Receive:
        if scope["method"] in READING:  # nobody reads the body of one that reads
            return receive
        headers = Headers(scope=scope)
        encoding = headers.get("content-encoding", "").strip().lower()
        if encoding not in {"", "identity"}:
            detail = f"Content-Encoding {encoding[:100]!r}: bodies are taken as they are, without the header"
            more = {"Accept-Encoding": "identity", "Connection": "close"}
            raise ProblemError("unknown-encoding", detail, headers=more)
        most = limit(scope["method"], scope["path"])
        if most is None:
            return receive
        told = headers.get("content-length", "")
        if told.isdigit() and int(told) > most:
            raise too_large(most, f"{told} bytes")
        return _counted(receive, most)

    return check


def pace_check(grace_s: float) -> Check:
    """Refuses bodies that come too slowly: the sender may take `grace_s`, and a second more for each `SLOWEST` bytes.

    Only time in which the server waits for the sender counts. Who holds many connections open would hold files and
    memory with them.
    """

    def check(_scope: Scope, receive: Receive) -> Receive:
        left = grace_s
        more = True

        async def pacing() -> Message:
            nonlocal left, more
            if not more:
                return await receive()
            began = asyncio.get_running_loop().time()
            try:
                message = await asyncio.wait_for(receive(), max(0.0, left))
            except TimeoutError:
                detail = f"the body came at less than {SLOWEST} bytes a second for {grace_s:g} s"
                raise _closing("too-slow", detail) from None
            left += len(message.get("body", b"")) / SLOWEST - (asyncio.get_running_loop().time() - began)
            more = message["type"] == "http.request" and message.get("more_body", False)
            return message

        return pacing

    return check


class CallGate:
    """Refuses calls of who has as many under way as their share: a stream of events, or an answer that nobody reads,
    holds a connection that others need.

    A user has a quarter of `connections`, a project half of them; an agent has `AGENT_CALLS`, and each of its
    allocations. Neither users nor agents have more than three quarters together.
    """

    def __init__(self, app: ASGIApp, connections: int) -> None:
        self._app = app
        most, half, quarter = (max(1, connections * each // 4) for each in (3, 2, 1))
        self._of_users = Shares(most, of_project=half, of_user=quarter)
        self._of_agents = Shares(most, of_project=most, of_user=AGENT_CALLS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        rule, identifier = rule_of(scope["method"], scope["path"]) or (None, "")
        is_agents = rule is not None and rule.holder is not None and USER not in scope
        shares = self._of_agents if is_agents else self._of_users
        party = Party("agents", f"agent {identifier}") if is_agents else party_of(Request(scope))
        if (found := shares.too_many(1, party)) is not None:
            error = FullError("call", found[0], of=found[1] or ("all agents" if is_agents else "all users"))
            await respond(problem(error.code, error.message))(scope, receive, send)
            return
        shares.add(1, party)
        try:
            await self._app(scope, receive, send)
        finally:
            shares.add(-1, party)


class SubmissionGate:
    """Refuses submitted jobs while those that others, or their own user, have sent and that are not answered yet take
    too many bytes: before the body is read."""

    def __init__(self, app: ASGIApp, bodies: BodyLimit, checks: FairQueue, most_bytes: int) -> None:
        self._app = app
        self._checks = checks
        self._bodies = bodies
        self._most_bytes = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["method"], scope["path"]) != ("POST", "/v1/jobs"):
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        nbytes, party = declared_bytes(request.headers, self._most_bytes), party_of(request)
        if not self._bodies.has_room(nbytes, party):
            await self._checks.drop_disconnected()  # who has left makes room
        try:
            with self._bodies.reserve(nbytes, party):
                await self._app(scope, receive, send)
        except FullError as error:
            await respond(problem(error.code, error.message))(scope, receive, send)


def declared_bytes(headers: Headers, most: int) -> int:
    """What a body is to have, at most."""
    told = headers.get("content-length", "")
    is_told = told.isdigit() and "transfer-encoding" not in headers
    return min(int(told), most) if is_told else most


def _closing(code: str, detail: str) -> ProblemError:
    """The refusal of a body; the connection is closed, since the rest of the body is not read."""
    return ProblemError(code, detail, headers={"Connection": "close"})


def too_late(seconds: float) -> ProblemError:
    """The refusal of a body that comes, but not within its time."""
    return _closing("too-slow", f"the body did not come whole within {seconds:g} s")


def too_large(limit: int, what: str) -> ProblemError:
    """The refusal of a body of more than so many bytes."""
    return _closing("too-large", f"the body has {what}; at most {limit} are taken here")


def _counted(receive: Receive, limit: int) -> Receive:
    count = 0

    async def counting() -> Message:
        nonlocal count
        message = await receive()
        if message["type"] == "http.request":
            count += len(message.get("body", b""))
            if count > limit:
                raise too_large(limit, f"more than {limit} bytes")
        return message

    return counting
