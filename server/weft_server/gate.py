"""Who may come in: the right Host on loopback, the right token where there is one, no body that is too large.

Plain ASGI: every request passes here before any of it is read.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weft_server.problems import ProblemError, problem, respond

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Probes carry no token, and say nothing but yes or no."""
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
                await respond(problem(HTTPStatus.MISDIRECTED_REQUEST, "wrong-host", detail))(scope, receive, send)
                return
        await self._app(scope, receive, send)


class TokenGate:
    """Wants `Authorization: Bearer` with the token. Only the token's hash is kept."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._digest = _digest(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS and not self._is_right(scope):
            detail = "the call needs the header 'Authorization: Bearer TOKEN' with this server's token"
            answer = respond(problem(HTTPStatus.UNAUTHORIZED, "unauthorized", detail), {"WWW-Authenticate": "Bearer"})
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_right(self, scope: Scope) -> bool:
        kind, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(_digest(token.strip()), self._digest)


class BodyGate:
    """Refuses bodies above `limit(method, path)` bytes: by Content-Length, else while they come; None is no limit."""

    def __init__(self, app: ASGIApp, limit: Callable[[str, str], int | None]) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limit = self._limit(scope["method"], scope["path"]) if scope["type"] == "http" else None
        if limit is None:
            await self._app(scope, receive, send)
            return
        told = Headers(scope=scope).get("content-length", "")
        if told.isdigit() and int(told) > limit:
            error = too_large(limit, f"{told} bytes")
            await respond(error.problem, error.headers)(scope, receive, send)
            return
        await self._app(scope, _counted(receive, limit), send)


def too_large(limit: int, what: str) -> ProblemError:
    """The refusal of a body; the connection is closed, since the rest of the body is not read."""
    detail = f"the body has {what}; at most {limit} are taken here"
    return ProblemError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too-large", detail, headers={"Connection": "close"})


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
