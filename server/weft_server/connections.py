"""Connections before any request is answered: bounded in number and time, whoever is at their other end.

uvicorn bounds the time between two requests. What is added: the time in which a request's head has to come, from the
connection's beginning or the request's first byte; how many connections there are, of which the one that has waited
longest makes room; and what happens to a connection for which there is no descriptor.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import time
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from weft_server.problems import MEDIA_TYPE, problem

LOGGER = "weft.connections"
_log = logging.getLogger(LOGGER)

BACKLOG = 128
"""Connections that one turn of the event loop accepts before it looks at any of them."""
OWN_DESCRIPTORS = 256
"""Files, the database and child processes, and as many new connections as one turn accepts."""
TOLD_EVERY_S = 60.0

_LACKING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""What `accept` says where there is nothing to make a connection of."""


def most_connections(wanted: int) -> int:
    """How many there may be: as wanted, or what this process may open once it has raised its own limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted + OWN_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(wanted + OWN_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        soft = target
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - min(OWN_DESCRIPTORS, soft // 2)))


def bounded(most: int, head_s: float) -> type[H11Protocol]:
    """The protocol of a server that has at most so many connections, on which a head takes at most so long."""
    waiting: dict[Bounded, None] = {}

    class Limited(Bounded):
        _most, _head_s, _waiting = most, head_s, waiting

    return Limited


class Bounded(H11Protocol):
    """Invariant: `_waiting` has the connections on which no request is answered, the one that waits longest first."""

    _most: int
    _head_s: float
    _waiting: dict[Bounded, None]
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waiting[self] = None
        if len(self.connections) > self._most:
            longest = next(iter(self._waiting))
            del self._waiting[longest]
            longest.transport.abort()
            _log.warning(
                "all %d connections are in use: those that have waited longest are closed; "
                "WEFT_SERVER_MOST_CONNECTIONS and `ulimit -n` raise the limit",
                self._most,
            )
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._waiting.pop(self, None)
        self._unset()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._waiting.pop(self, None)
            self._unset()
        else:
            self._expect()  # part of a head, or the rest of a body that nobody reads

    def on_response_complete(self) -> None:
        if not self.transport.is_closing():
            self._waiting[self] = None
        super().on_response_complete()
        if not self.cycle.response_complete:  # the next request was here already
            self._waiting.pop(self, None)

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is answered as all else that is refused: by a problem."""
        document = problem("malformed-request", "the request is not valid HTTP").model_dump_json().encode()
        headers = [("Content-Type", MEDIA_TYPE), ("Content-Length", str(len(document))), ("Connection", "close")]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=document),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _expect(self) -> None:
        """What has begun ends within its time, however many bytes come meanwhile."""
        if self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self._head_s, self.transport.abort)

    def _unset(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class Listener(socket.socket):
    """A listening socket that turns connections away while this process has no descriptor for them.

    asyncio would try thousands of times a second, and log each try: here a descriptor is kept in reserve, with which
    such a connection is accepted and closed.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._reserve: int | None = _reserved()

    def accept(self) -> tuple[socket.socket, Any]:
        while True:
            try:
                return super().accept()
            except OSError as error:
                if error.errno not in _LACKING:
                    raise
                _log.warning("new connections are turned away: %s; `ulimit -n` raises the limit", error.strerror)
                self._turn_away()

    def close(self) -> None:
        super().close()
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None

    def _turn_away(self) -> None:
        """Raises BlockingIOError where none waits, or another thread took what was in reserve."""
        if self._reserve is not None:
            os.close(self._reserve)
        try:
            super().accept()[0].close()
        except OSError as error:
            raise BlockingIOError(error.errno, "no connection can be accepted now") from error
        finally:
            self._reserve = _reserved()


class Seldom(logging.Filter):
    """Passes one record a minute of each message of a logger: anybody can make the server say them again and again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._told: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        now, message = self._clock(), str(record.msg)
        if now - self._told.get(message, -TOLD_EVERY_S) < TOLD_EVERY_S:
            return False
        self._told[message] = now
        return True


def _reserved() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
