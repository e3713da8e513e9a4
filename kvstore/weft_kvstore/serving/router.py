"""A shard's socket: a ROUTER that clients connect to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import zmq

from weft_kvstore.arrays.buffers import Buffer
from weft_kvstore.encryption.curve_authenticator import CurveAuthenticator
from weft_kvstore.errors import StoreError
from weft_kvstore.settings import MAX_FRAME_BYTES
from weft_kvstore.wire.codec import MAX_HEADER_BYTES

QUEUED_MESSAGES: Final = 1000
"""Messages that ZeroMQ holds for one peer, either way; a peer that does not read is dropped."""

COPIED_BYTES: Final = 1 << 19
"""A shorter part of a message is copied: for one that is not, a thread is woken once it has left. It takes as long."""

HANDSHAKE_MS: Final = 5000
"""A connection that has not ended its handshake by then is closed: silent ones would use up the file descriptors."""

_GONE: Final = frozenset({zmq.EHOSTUNREACH, zmq.EAGAIN})
"""The connection is gone, or the peer does not read. It may come again by a Hello."""


class Router:
    """Bound to `bind` when made; `endpoint` is where. Used by one thread at a time, and polled as `socket`.
    `authenticator`: who is let in, where links are encrypted. Raises StoreError where it cannot be bound."""

    def __init__(self, bind: str, authenticator: CurveAuthenticator | None = None) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.sndhwm = self.socket.rcvhwm = QUEUED_MESSAGES
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES + MAX_HEADER_BYTES)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.copy_threshold = COPIED_BYTES
        self.socket.handshake_ivl = HANDSHAKE_MS
        self._authenticator = authenticator
        try:
            if authenticator is not None:
                authenticator.apply_to(self._context, self.socket)
            self.socket.bind(bind)
        except (zmq.ZMQError, RuntimeError) as error:  # The latter where the authenticator's thread does not start.
            self.close()
            raise StoreError(f"cannot bind {bind}: {error}") from error
        self.endpoint: str = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.bytes_sent = 0

    @property
    def is_readable(self) -> bool:
        """Whether a message has come."""
        return bool(int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)  # A poll makes a poller each time.

    def receive(self) -> tuple[bytes, Sequence[Buffer]]:
        """A message that has come: the identity of its connection, and its parts, which nobody else has."""
        identity, *frames = self.socket.recv_multipart(copy=False)
        return identity.bytes, [frame.buffer for frame in frames]

    def send(self, identity: bytes, parts: Sequence[Buffer]) -> bool:
        """Sends a message; False where its connection is gone, or does not read. Never waits."""
        try:
            self.socket.send_multipart([identity, *parts], zmq.NOBLOCK, copy=False)
        except zmq.ZMQError as error:
            if error.errno not in _GONE:
                raise
            return False
        self.bytes_sent += sum(map(len, parts))
        return True

    @property
    def is_closed(self) -> bool:
        return self._context.closed

    def close(self) -> None:
        """Closes it; what was not sent is dropped."""
        self.socket.close(0)
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.term()
