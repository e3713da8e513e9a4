"""Who may come in: the right Host on loopback, no page of another site, the right token where there is one, no body
that is compressed, too large or too slow.

Plain ASGI: every request passes here before any of it is read.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weft_server.credentials import Credentials, is_credential
from weft_server.problems import ProblemError, problem, respond

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Probes carry no token, and say nothing but yes or no."""
OPEN_PAGES = "/problems"
"""What a problem means is no secret, and a browser that follows its `type` has no token."""
SLOWEST = 16 << 10
"""Bytes a second that a body has to come at in the long run: a tenth of a poor mobile link."""
READING = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""
CHALLENGE = {"WWW-Authenticate": "Bearer"}
USERS, JOIN = ("users", ""), ("join", "")
WANTED = {
    "users": "the users' token",
    "join": "the agents' token",
    "agents": "the credential of agent {}, which its registration was answered with",
    "allocations": "the credential of allocation {}, which its agent's orders hold",
}
_OF_AN_AGENT = re.compile(r"/v1/(agents|allocations)/([^/]+)")
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


class HostGate:
    """Refuses requests whose Host header is no name of this machine's loopback.

    A page in a browser could otherwise reach the server under a name of its own that resolves to 127.0.0.1.
    """

    def __init__(self, app: ASGIApp, names: frozenset[str]) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = Headers(scope=scope).get("host", "")
            name = host if host.endswith("]") else host.rsplit(":", 1)[0]
            if name.lower() not in self._names:
                detail = f"Host {host!r} is none of {', '.join(sorted(self._names))}"
                await respond(problem("wrong-host", detail))(scope, receive, send)
                return
        await self._app(scope, receive, send)


class OriginGate:
    """Refuses requests that change something where a browser sends them for a page of another site.

    Pages need nobody's leave to send some requests; a browser says with Origin whose page it is. Programs send none.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in READING:
            headers = Headers(scope=scope)
            own = headers.get("host", "").lower()
            foreign = [each for each in headers.getlist("origin") if each.lower().partition("://")[2] != own]
            if foreign:
                detail = f"Origin {foreign[0][:200]!r} is another site than {own!r}: its pages change nothing here"
                await respond(problem("wrong-origin", detail))(scope, receive, send)
                return
        await self._app(scope, receive, send)


class TokenGate:
    """Wants `Authorization: Bearer` with what the path asks for; of tokens only the hashes are kept.

    An agent registers with the agents' token. `/v1/agents/ID/...` wants the credential of that agent,
    `/v1/allocations/ID/...` that of the allocation, and everything else the users' token. No other does in its place.
    """

    def __init__(self, app: ASGIApp, token: str, agent_token: str, credentials: Credentials) -> None:
        self._app = app
        self._digests = {USERS: _digest(token), JOIN: _digest(agent_token)}
        self._credentials = credentials

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not _is_open(scope["path"]):
            refusal = self._refusal(scope)
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        kind, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        token = token.strip() if kind.lower() == "bearer" else ""
        wanted = _wanted(scope["method"], scope["path"])
        given = self._credentials.holder(token)
        if given == wanted:
            return None
        digest = _digest(token)
        known = [each for each, of in self._digests.items() if hmac.compare_digest(digest, of)]
        if wanted in known:
            return None
        if given is not None or known:
            whose = "a token" if given is None else f"the credential of {given[0]} {given[1]}"
            detail = f"the call came with {whose}, and wants {WANTED[wanted[0]].format(wanted[1])}"
            return respond(problem("wrong-credential", detail))
        if is_credential(token):
            detail = "the server does not know this credential: it has another key now; register again"
            return respond(problem("unknown-credential", detail), CHALLENGE)
        detail = "the call needs the header 'Authorization: Bearer TOKEN' with this server's token"
        return respond(problem("unauthorized", detail), CHALLENGE)


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or f"{path}/".startswith(f"{OPEN_PAGES}/")


def _wanted(method: str, path: str) -> tuple[str, str]:
    """Whose credential a call needs, as (kind, id), or which token."""
    if (method, path) == ("POST", "/v1/agents"):
        return JOIN
    found = _OF_AN_AGENT.match(path)
    return USERS if found is None else (found[1], found[2])


class BodyGate:
    """Refuses bodies that are compressed, and those above `limit(method, path)` bytes: by Content-Length, else while
    they come; None is no limit.
    """

    def __init__(self, app: ASGIApp, limit: Callable[[str, str], int | None]) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in READING:  # nobody reads the body of one that reads
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        encoding = headers.get("content-encoding", "").strip().lower()
        if encoding not in {"", "identity"}:
            detail = f"Content-Encoding {encoding[:100]!r}: bodies are taken as they are, without the header"
            more = {"Accept-Encoding": "identity", "Connection": "close"}
            answer = respond(problem("unknown-encoding", detail), more)
            await answer(scope, receive, send)
            return
        limit = self._limit(scope["method"], scope["path"])
        if limit is None:
            await self._app(scope, receive, send)
            return
        told = headers.get("content-length", "")
        if told.isdigit() and int(told) > limit:
            error = too_large(limit, f"{told} bytes")
            await respond(error.problem, error.headers)(scope, receive, send)
            return
        await self._app(scope, _counted(receive, limit), send)


class PaceGate:
    """Refuses bodies that come too slowly: the sender may take `grace_s`, and a second more for each `SLOWEST` bytes.

    Only time in which the server waits for the sender counts. Who holds many connections open would hold files and
    memory with them.
    """

    def __init__(self, app: ASGIApp, grace_s: float) -> None:
        self._app = app
        self._grace_s = grace_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, _paced(receive, self._grace_s) if scope["type"] == "http" else receive, send)


def _paced(receive: Receive, grace_s: float) -> Receive:
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
            raise too_slow(grace_s) from None
        left += len(message.get("body", b"")) / SLOWEST - (asyncio.get_running_loop().time() - began)
        more = message["type"] == "http.request" and message.get("more_body", False)
        return message

    return pacing


def too_slow(grace_s: float) -> ProblemError:
    """The refusal of a body that does not come; the connection is closed, since the rest of it is not read."""
    detail = f"the body came at less than {SLOWEST} bytes a second for {grace_s:g} s"
    return ProblemError("too-slow", detail, headers={"Connection": "close"})


def too_late(seconds: float) -> ProblemError:
    """The refusal of a body that comes, but not within its time; the connection is closed as by `too_slow`."""
    detail = f"the body did not come whole within {seconds:g} s"
    return ProblemError("too-slow", detail, headers={"Connection": "close"})


def too_large(limit: int, what: str) -> ProblemError:
    """The refusal of a body; the connection is closed, since the rest of the body is not read."""
    detail = f"the body has {what}; at most {limit} are taken here"
    return ProblemError("too-large", detail, headers={"Connection": "close"})


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


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
