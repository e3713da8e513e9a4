"""A shard's socket, and how many connections it has of peers that it does not know."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from weft_kvstore.arrays import Buffer
from weft_kvstore.encryption.curve_authenticator import CurveAuthenticator
from weft_kvstore.errors import StoreError
from weft_kvstore.settings import MAX_FRAME_BYTES, endpoints_of
from weft_kvstore.wire.codec import MAX_HEADER_BYTES

# --- Connections of peers that are no clients -------------------------------------------------------------------------

STRANGERS: Final = 256
"""Connections that may be open at a time on which no Hello was welcomed. A client says Hello once it is connected, so
the one that has been silent for longest is closed for one more."""

STRANGER_S: Final = 10.0
"""A stranger is closed after so long. ZeroMQ closes it earlier where its handshake does not end."""

_TICK_MS: Final = 1000
_ENDED: Final = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
_WATCHED: Final = zmq.EVENT_ACCEPTED | _ENDED | zmq.EVENT_ACCEPT_FAILED | zmq.EVENT_MONITOR_STOPPED

_log = logging.getLogger("weft.shard")


class Strangers:
    """Closes connections of a bound `router` that are too many or too old, until one is `welcome`. A thread of its own
    hears of connections; a call costs the shard nothing."""

    def __init__(
        self, router: zmq.Socket[bytes], *, most: int = STRANGERS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._router = router
        self._most = most
        self._clock = clock
        self._welcomed: deque[tuple[int, int]] = deque()
        self._since: dict[int, float] = {}
        """File descriptor -> when it was accepted, the oldest first."""
        self._welcome: dict[int, None] = {}
        self._told = 0
        self._monitor = router.get_monitor_socket(_WATCHED)
        address = router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._port = int(address.rsplit(":", 1)[1]) if address.startswith("tcp://") else None
        self._thread = threading.Thread(target=self._run, name="weft-strangers", daemon=True)
        self._thread.start()

    def welcome(self, identity: zmq.Frame, most: int) -> None:
        """The connection that this frame came on is a client's. Of those welcomed so far the newest `most` count."""
        self._welcomed.append((identity.get(zmq.SRCFD), most))

    def close(self) -> None:
        """Ends the thread. Before the router is closed."""
        self._router.disable_monitor()
        self._thread.join()

    def _run(self) -> None:
        with contextlib.closing(self._monitor):
            while True:
                self._monitor.poll(_TICK_MS)
                welcomed = [self._welcomed.popleft() for _ in range(len(self._welcomed))]
                while self._monitor.poll(0):  # That these connections were accepted is among what is read now.
                    event = recv_monitor_message(self._monitor)
                    if event["event"] == zmq.EVENT_MONITOR_STOPPED:
                        return
                    self._take(event["event"], event["value"])
                for fd, most in welcomed:
                    self._admit(fd, most)
                self._drop()

    def _take(self, event: int, fd: int) -> None:
        if event == zmq.EVENT_ACCEPT_FAILED:  # No file descriptor is left, say: half of the strangers make room.
            for each in list(self._since)[: (len(self._since) + 1) // 2]:
                self._shut(each)
            return
        self._since.pop(fd, None)
        self._welcome.pop(fd, None)
        if event == zmq.EVENT_ACCEPTED:
            self._since[fd] = self._clock()

    def _admit(self, fd: int, most: int) -> None:
        if self._since.pop(fd, None) is not None:
            self._welcome[fd] = None
        while len(self._welcome) > most:
            oldest = next(iter(self._welcome))
            del self._welcome[oldest]
            self._since[oldest] = self._clock()

    def _drop(self) -> None:
        old = self._clock() - STRANGER_S
        for fd in [each for each, since in self._since.items() if since < old]:
            self._shut(fd)
        while len(self._since) > self._most:
            self._shut(next(iter(self._since)))

    def _shut(self, fd: int) -> None:
        """Shuts the connection down; ZeroMQ then closes it. Its number may be another file's by now."""
        self._since.pop(fd, None)
        self._told += 1
        if self._told & (self._told - 1) == 0:  # The 1st, 2nd, 4th, ...: a flood does not fill the log.
            _log.warning("%d connections were closed that said no Hello", self._told)
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as connection:
            if self._port is None or connection.getsockname()[1] == self._port:
                connection.shutdown(socket.SHUT_RDWR)


# --- A shard's socket: a ROUTER that clients connect to ---------------------------------------------------------------


QUEUED_MESSAGES: Final = 1000
"""Messages that ZeroMQ holds for one peer, either way; a peer that does not read is dropped."""

COPIED_BYTES: Final = 1 << 19
"""A shorter part of a message is copied: for one that is not, a thread is woken once it has left. It takes as long."""

SHORT_BYTES: Final = 1 << 15
"""A shorter part of a message that comes is copied sooner than it is kept where it lies."""

HANDSHAKE_MS: Final = 5000
"""A connection that has not ended its handshake by then is closed: silent ones would use up the file descriptors."""

SPARE: Final = 8
"""Connections of clients beyond twice those that a slot has now: those that broke, and are not known to be closed."""

_GONE: Final = frozenset({zmq.EHOSTUNREACH, zmq.EAGAIN})
"""The connection is gone, or the peer does not read. It may come again by a Hello."""

# Plain numbers: arithmetic on pyzmq's flags takes longer than what it says.
_NOW = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_READABLE = int(zmq.POLLIN)
_EVENTS = int(zmq.EVENTS)


class Router:
    """Bound to `bind` when made, of a range of ports to the first free one; `endpoint` is where. Used by one thread at
    a time, and polled as `socket`.
    `authenticator`: who is let in, where links are encrypted. Raises StoreError where it cannot be bound."""

    def __init__(self, bind: str, authenticator: CurveAuthenticator | None = None) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.sndhwm = self.socket.rcvhwm = QUEUED_MESSAGES
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES + MAX_HEADER_BYTES)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.handshake_ivl = HANDSHAKE_MS
        self._authenticator = authenticator
        self._strangers: Strangers | None = None
        try:
            if authenticator is not None:
                authenticator.apply_to(self._context, self.socket)
            self._bind(bind)
        except (zmq.ZMQError, RuntimeError, ValueError) as error:  # RuntimeError: no thread starts.
            self.close()
            raise StoreError(f"cannot bind {bind}: {error}") from error
        self.endpoint: str = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.bytes_sent = 0
        self._send: Callable[..., object] = super(zmq.Socket, self.socket).send
        """Without what pyzmq's own adds for other kinds of sockets: a third of its time."""
        self._last: zmq.Frame | None = None
        self._strangers = Strangers(self.socket)

    def _bind(self, bind: str) -> None:
        *endpoints, last = endpoints_of(bind)
        for endpoint in endpoints:
            try:
                self.socket.bind(endpoint)
            except zmq.ZMQError as error:
                if error.errno != zmq.EADDRINUSE:
                    raise
            else:
                return
        self.socket.bind(last)

    @property
    def is_readable(self) -> bool:
        """Whether a message has come."""
        return bool(self.socket.get(_EVENTS) & _READABLE)  # type: ignore[operator]  # a poll makes a poller each time

    def receive(self) -> tuple[bytes, Sequence[Buffer]]:
        """A message that has come: the identity of its connection, and its parts, which nobody else has. Short ones
        are copied: where a message lies whatever came with it is kept too, and arrays in it are not aligned."""
        identity = self.socket.recv(_NOW)
        self._last = frame = self.socket.recv(_NOW, copy=False)
        parts: list[Buffer] = [frame.bytes]
        while frame.more:  # The parts of a message come together or not at all.
            frame = self.socket.recv(_NOW, copy=False)
            parts.append(frame.bytes if len(frame) < SHORT_BYTES else frame.buffer)
        return identity, parts

    def welcome(self, most: int) -> None:
        """The message received last came from a client, of which the newest `most` stay. Others are closed in time."""
        if self._strangers is not None and self._last is not None:
            self._strangers.welcome(self._last, most)

    def send(self, identity: bytes, parts: Sequence[Buffer]) -> bool:
        """Sends a message; False where its connection is gone, or does not read. Never waits."""
        last = len(parts) - 1
        try:
            self._send(identity, _MORE)
            for number, part in enumerate(parts):
                size = len(part)
                self._send(part, _NOW if number == last else _MORE, size < COPIED_BYTES)
                self.bytes_sent += size
        except zmq.ZMQError as error:
            if error.errno not in _GONE:
                raise
            return False
        return True

    def close(self) -> None:
        """Closes it; what was not sent is dropped. Idempotent."""
        if self._strangers is not None:
            self._strangers.close()
        self.socket.close(0)
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.term()
