"""The socket of a shard, and the connections that it has: those that are no client's are closed in time."""

from __future__ import annotations

import contextlib
import errno
import logging
import resource
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from weft_kvstore.arrays import Buffer
from weft_kvstore.encryption import CurveAuthenticator
from weft_kvstore.errors import StoreError
from weft_kvstore.process import EVENTS, MORE, MOVES_BYTES, NOW, READABLE, opened_again, received_bytes, zeromq_context
from weft_kvstore.settings import COPIED_BYTES, MAX_FRAME_BYTES, endpoints_of
from weft_kvstore.wire.codec import MAX_HEADER_BYTES, MAX_PARTS

# --- The connections: which are clients', and which are closed --------------------------------------------------------


MAX_UNKNOWN: Final = 256
"""So many connections may be open at a time that are no client's; fewer if the process may open few files. For one more
the oldest of them is closed: a client says Hello as soon as it is connected."""

UNKNOWN_S: Final = 10.0
"""Such a connection is closed after so long. ZeroMQ closes it earlier if its handshake does not end."""

UNKNOWN_BYTES: Final = 1 << 18
"""Such a connection is closed once it has sent more. A Hello has some hundred bytes, and ZeroMQ keeps a message until
its end has come, however long it is."""

MESSAGE_BYTES: Final = 2 * (MAX_FRAME_BYTES + MAX_HEADER_BYTES)
"""A client's connection is closed once it has sent more in one message, whose parts ZeroMQ keeps. The longest message
has half as many bytes."""

_log = logging.getLogger("weft.shard")


class Connections:
    """The open connections of a `router`, which is bound later, by file descriptor. A connection is no client's if no
    Hello was welcomed on it, or if its client has another one since. Such connections are closed if they are too many,
    too old or send too much. Used by the router's thread; a message costs nothing."""

    def __init__(self, router: zmq.Socket[bytes], *, clock: Callable[[], float] = time.monotonic) -> None:
        self.unknown: dict[int, float] = {}
        """Connections that are no client's, and since when each is none; the oldest first."""
        self._identities: dict[int, bytes] = {}
        """The router's identity of each connection that is a client's, or was."""
        self._came: dict[int, tuple[int, int, int]] = {}
        """What `moving` saw last of each of these: the number of the last whole message, how many bytes had come on the
        connection when that number was seen first, and how many in the last call."""
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
        """The identities of the clients whose next message is long and still arriving. `numbers` has the number of the
        last message that has come from each. A message without an end ends its connection. To be called every second
        or so."""
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
        """The connection of this identity, if it is open, is a client's no more."""
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
        """Shuts a connection down, and ZeroMQ then closes it. The descriptor may be another file's by now."""
        del self.unknown[fd]
        self._closed += 1
        if self._closed & (self._closed - 1) == 0:  # The 1st, 2nd, 4th, ...: a flood does not fill the log.
            _log.warning("%d connections were closed that are no client's", self._closed)
        with contextlib.suppress(OSError), opened_again(fd) as connection:
            name = connection.getsockname()  # The path of an ipc socket, else host and port.
            end = f":{name[1]}" if isinstance(name, tuple) else f"//{name}"
            if self._router.getsockopt_string(zmq.LAST_ENDPOINT).endswith(end):
                connection.shutdown(socket.SHUT_RDWR)


# --- The socket: a ROUTER that clients connect to ---------------------------------------------------------------------


QUEUED_MESSAGES: Final = 1000
"""Messages that ZeroMQ holds for one peer, either way; a peer that does not read is dropped."""

SHORT_BYTES: Final = 1 << 15
"""To copy a shorter part of a received message takes less time than to keep it where it lies."""

DROPPED_PARTS: Final = 1 << 12
"""Of a message that has too many parts so many are read at once: some ms."""

HANDSHAKE_MS: Final = 5000
"""A connection that has not ended its handshake by then is closed: silent ones would use up the file descriptors."""

KEEPALIVE_S: Final = 60
"""Seconds without a word after which the kernel asks whether a client's machine is still there."""

_NO_BIND: Final[Mapping[int | None, str]] = {
    errno.ENODEV: "the host is no address of this machine; 0.0.0.0 stands for all that it has",
    errno.EADDRNOTAVAIL: "the host is no address of this machine; 0.0.0.0 stands for all that it has",
    errno.EINVAL: "it has to be tcp://HOST:PORT",
    errno.EADDRINUSE: "another process listens there; take another port, or port 0 for any free one",
}
"""Why a socket cannot be bound, and what to do."""

_GONE: Final = frozenset({zmq.EHOSTUNREACH, zmq.EAGAIN})
"""The connection is gone, or the peer does not read. It may come again by a Hello."""


class Router:
    """A socket that is bound to `bind` when made: to the first free port of a range. `endpoint` says where it listens.
    Used by one thread at a time, and polled as `socket`. `authenticator`: which clients are accepted, if links are
    encrypted. Raises StoreError if it cannot be bound."""

    def __init__(self, bind: str, authenticator: CurveAuthenticator | None = None) -> None:
        self._context = zeromq_context()
        self.socket = self._context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.sndhwm = self.socket.rcvhwm = QUEUED_MESSAGES
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES + MAX_HEADER_BYTES)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.handshake_ivl = HANDSHAKE_MS
        self.socket.tcp_keepalive = 1  # A client whose machine is gone does not keep its connection for ever.
        self.socket.tcp_keepalive_idle = KEEPALIVE_S
        self.socket.ipv6 = "[" in bind
        self._authenticator = authenticator
        self.connections = Connections(self.socket)
        try:
            if authenticator is not None:
                authenticator.apply_to(self._context, self.socket)
            self._bind(bind)
        except (zmq.ZMQError, RuntimeError, ValueError) as error:  # RuntimeError: no thread starts.
            self.close()
            number = error.errno if isinstance(error, zmq.ZMQError) else None
            raise StoreError(f"cannot bind {bind}: {_NO_BIND.get(number) or error}") from error
        self.endpoint: str = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.bytes_sent = 0
        self._send: Callable[..., object] = super(zmq.Socket, self.socket).send
        """Without what pyzmq's own `send` does for other kinds of sockets, which takes a third of its time."""
        self._last: zmq.Frame
        self.is_dropping = False
        """Whether a message has too many parts, and some of them are still to be read."""

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
        return bool(self.socket.get(EVENTS) & READABLE)  # type: ignore[operator]  # a poll makes a poller each time

    def receive(self) -> tuple[bytes, Sequence[Buffer]]:
        """A message that has come: the identity of its connection, and its parts, which are the caller's. Short parts
        are copied: one that is kept where it lies keeps all that was received with it, and arrays in it are not
        aligned. Of a message with too many parts only the first ones are returned; `drop` reads the others."""
        identity = self.socket.recv(NOW)
        self._last = frame = self.socket.recv(NOW, copy=False)
        parts: list[Buffer] = [frame.bytes]
        while frame.more and len(parts) <= MAX_PARTS:  # With one too many it is refused.
            frame = self.socket.recv(NOW, copy=False)
            parts.append(frame.bytes if len(frame) < SHORT_BYTES else frame.buffer)
        self.is_dropping = frame.more
        return identity, parts

    def drop(self) -> None:
        """Reads some of the other parts of such a message, which come before any other message."""
        for _ in range(DROPPED_PARTS):
            if not self.socket.recv(NOW, copy=False).more:
                self.is_dropping = False
                return

    def welcome(self, identity: bytes) -> None:
        """The message that was received last came from a client: its connection stays open."""
        self.connections.welcome(identity, self._last.get(zmq.SRCFD))

    def send(self, identity: bytes, parts: Sequence[Buffer]) -> bool:
        """Sends a message; False where its connection is gone, or does not read. Never waits."""
        last = len(parts) - 1
        try:
            self._send(identity, MORE)
            for number, part in enumerate(parts):
                size = len(part)
                self._send(part, NOW if number == last else MORE, size < COPIED_BYTES)
                self.bytes_sent += size
        except zmq.ZMQError as error:
            if error.errno not in _GONE:
                raise
            return False
        return True

    def close(self) -> None:
        """Closes it; what was not sent is dropped."""
        self.connections.close()
        self.socket.close(0)
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.term()
