"""The connections that a shard's socket has: those that are no client's are closed in time."""

from __future__ import annotations

import contextlib
import logging
import resource
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from weft_kvstore.process import EVENTS, MOVES_BYTES, READABLE, opened_again, received_bytes
from weft_kvstore.settings import MAX_FRAME_BYTES
from weft_kvstore.wire.codec import MAX_HEADER_BYTES

MAX_UNKNOWN: Final = 256
"""Connections that may be open at a time and are no client's: fewer where the process may open few files. A client says
Hello once it is connected, so the one that has been silent for longest is closed for one more."""

UNKNOWN_S: Final = 10.0
"""Such a connection is closed after so long. ZeroMQ closes it earlier where its handshake does not end."""

UNKNOWN_BYTES: Final = 1 << 18
"""Such a connection is closed once it has sent more: a Hello is some hundred bytes. ZeroMQ keeps a message until its
end has come, however long it is."""

MESSAGE_BYTES: Final = 2 * (MAX_FRAME_BYTES + MAX_HEADER_BYTES)
"""A client's is closed once it has sent more in one message, that ZeroMQ has in parts: a message is half as long."""

_log = logging.getLogger("weft.shard")


class Connections:
    """The open connections of a `router`, which is bound later, by file descriptor. Those that are no client's, as no
    Hello was welcomed on them or the client has another since, are closed where they are too many, too old or send too
    much. Used by the router's thread; a message costs nothing.
    """

    def __init__(self, router: zmq.Socket[bytes], *, clock: Callable[[], float] = time.monotonic) -> None:
        self.unknown: dict[int, float] = {}
        """Since when each is no client's, the oldest first."""
        self._identities: dict[int, bytes] = {}
        """What the router calls each that is a client's, or was one."""
        self._came: dict[int, tuple[int, int, int]] = {}
        """On each of these: the number of the last message when `moving` was called last, the bytes that had come when
        that was new, and those that had come by now."""
        self.ended: Callable[[bytes], None] = lambda identity: None
        """Called with the identity of a connection that was a client's, once it is no more."""
        self._closed = 0
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = MAX_UNKNOWN if files == resource.RLIM_INFINITY else min(MAX_UNKNOWN, files // 4)
        self._router = router
        self._clock = clock
        self._events: zmq.Socket[bytes] = router.context.socket(zmq.PAIR)
        self._events.linger = 0
        self._events.rcvhwm = 0  # Or ZeroMQ's own thread would wait for this one.
        endpoint = f"inproc://connections-{id(self)}"
        router.monitor(endpoint, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._events.connect(endpoint)
        self.receive()  # Before it was read once its descriptor stays unreadable.

    def fileno(self) -> int:
        """Readable when `receive` has something to do."""
        return int(self._events.get(zmq.FD))

    def receive(self) -> None:
        """Connections were opened or have ended."""
        while int(self._events.get(EVENTS)) & READABLE:
            event = recv_monitor_message(self._events)
            fd = event["value"]
            self.unknown.pop(fd, None)
            if (identity := self._identities.pop(fd, None)) is not None:
                self.ended(identity)
            if event["event"] == zmq.EVENT_ACCEPTED:
                self.unknown[fd] = self._clock()
        while len(self.unknown) > self._most:
            self._close(next(iter(self.unknown)))

    def tick(self) -> None:
        """To be called every second or so."""
        self.receive()
        old = self._clock() - UNKNOWN_S
        while self.unknown and self.unknown[fd := next(iter(self.unknown))] < old:
            self._close(fd)
        for fd in [fd for fd in self.unknown if fd not in self._identities and received_bytes(fd) > UNKNOWN_BYTES]:
            self._close(fd)

    def moving(self, numbers: Mapping[bytes, int]) -> list[bytes]:
        """The clients, by identity, of which a long message comes; `numbers` are those of the last one that has come of
        each. One that has no end is cut off. To be called every second or so."""
        moving: list[bytes] = []
        endless: list[int] = []
        before, self._came = self._came, {}
        for fd, identity in self._identities.items():
            number, bytes_now = numbers.get(identity), received_bytes(fd)
            if number is None:
                continue
            last, begun, bytes_then = before.get(fd, (-1, 0, 0))
            begun = begun if number == last else bytes_now
            self._came[fd] = number, begun, bytes_now
            if bytes_now - begun > MESSAGE_BYTES:
                endless.append(fd)
            elif number == last and bytes_now - bytes_then >= MOVES_BYTES:
                moving.append(identity)
        for fd in endless:
            self.unknown[fd] = self._clock()
            self._close(fd)
        return moving

    def welcome(self, identity: bytes, fd: int) -> None:
        """This connection is a client's."""
        self.receive()  # That it was opened may not have been read.
        if self.unknown.pop(fd, None) is not None:
            self._identities[fd] = identity
        elif self._identities.get(fd) != identity:
            self.ended(identity)

    def forget(self, identity: bytes) -> None:
        """That of this identity is a client's no more, if it is open."""
        self.receive()
        for fd, one in self._identities.items():
            if one == identity and fd not in self.unknown:
                self.unknown[fd] = self._clock()
                break

    def close(self) -> None:
        """Before the router is closed."""
        self._router.disable_monitor()
        self._events.close(0)

    def _close(self, fd: int) -> None:
        """Shuts a connection down; ZeroMQ then closes it. Its number may be another file's by now."""
        del self.unknown[fd]
        self._closed += 1
        if self._closed & (self._closed - 1) == 0:  # The 1st, 2nd, 4th, ...: a flood does not fill the log.
            _log.warning("%d connections were closed that are no client's", self._closed)
        with contextlib.suppress(OSError), opened_again(fd) as connection:
            name = connection.getsockname()  # The path of an ipc socket, else host and port.
            end = f":{name[1]}" if isinstance(name, tuple) else f"//{name}"
            if self._router.getsockopt_string(zmq.LAST_ENDPOINT).endswith(end):
                connection.shutdown(socket.SHUT_RDWR)
