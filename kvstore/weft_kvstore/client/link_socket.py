"""The client's socket to one shard: a DEALER, and the monitor that tells when its connection breaks."""

from __future__ import annotations

from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from weft_kvstore.arrays.buffers import Buffer
from weft_kvstore.client.handshake_failure import HandshakeFailure
from weft_kvstore.encryption.link_keys import LinkKeys
from weft_kvstore.settings import MAX_FRAME_BYTES
from weft_kvstore.wire.codec import MAX_HEADER_BYTES

BROKEN = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
"""The monitor's words for a connection that has ended, and for one that could not be made."""

SHUT_OUT: Final = {
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): HandshakeFailure.UNAUTHORIZED,
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): HandshakeFailure.MECHANISM_MISMATCH,
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): HandshakeFailure.BROKEN_OFF,
}
"""Its words for an end before the first message."""

_WATCHED = int(BROKEN) | sum(SHUT_OUT)

NO_RECONNECT = -1

COPIED_BYTES = 1 << 19
"""A smaller part is copied when it is sent. To keep its memory for the socket wakes a thread of pyzmq once it has left,
which takes about as long as to copy so much."""

# Plain numbers: arithmetic on pyzmq's flags takes longer than what it says.
_NOW = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_EVENTS = int(zmq.EVENTS)
_READABLE = int(zmq.POLLIN)
_MECHANISM = int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)


class LinkSocket:
    """One connection; a new one is a new object. Used by one thread at a time. Counts the bytes that pass.

    `fd` becomes readable when something comes, and does not stay so: whatever is done with the socket may take the sign
    away. So `is_unread` says that it was used since it was last seen empty. `monitor_fd` is the monitor's, which was
    seen empty before anything is connected; its messages are read by `broke` alone, all of them, and so it needs no
    such care afterwards. With `keys` the link is encrypted. `shut_out` is how the handshake has failed, where it has.
    Raises zmq.ZMQError for an endpoint that is none.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        keys: LinkKeys | None = None,
    ) -> None:
        self.shut_out: HandshakeFailure | None = None
        self.bytes_sent = 0
        self.bytes_received = 0
        self.is_unread = True
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.sndhwm = 0  # The outbox's credit is the bound.
        self.socket.rcvhwm = 0
        # A connection that libzmq made anew by itself would lack its Hello; the link says when to try again.
        self.socket.reconnect_ivl = NO_RECONNECT
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES + MAX_HEADER_BYTES)
        if keys is not None:
            self.socket.curve_serverkey = keys.shard.encode()
            self.socket.curve_publickey = keys.own.public.encode()
            self.socket.curve_secretkey = keys.own.secret.encode()
        self.monitor = self.socket.get_monitor_socket(_WATCHED)
        self.fd = int(self.socket.getsockopt(zmq.FD))
        self.monitor_fd = int(self.monitor.getsockopt(zmq.FD))
        self.broke()  # The descriptor tells of what comes after a look that found nothing.
        try:
            self.socket.connect(endpoint)
        except zmq.ZMQError:
            self.close()
            raise

    def send(self, parts: list[Buffer]) -> bool:
        """Sends a message; False if the connection has ended, so that nothing can be. Never waits.

        Large parts are not copied: they stay as they are until they are acknowledged.
        """
        self.is_unread = True
        last = len(parts) - 1
        try:
            for number, part in enumerate(parts):
                flags = _NOW if number == last else _MORE
                size = len(part)
                self.socket.send(part, flags, size < COPIED_BYTES)
                self.bytes_sent += size
        except zmq.Again:
            return False
        return True

    def unread(self) -> bool:
        """Whether there is a message; where it says no, `fd` tells of the next."""
        if self.is_unread:
            self.is_unread = _readable(self.socket)
        return self.is_unread

    def receive(self) -> list[memoryview] | None:
        """The next message; None if there is none."""
        self.is_unread = True
        if not self.unread():
            return None
        self.is_unread = True
        frame = self.socket.recv(_NOW, copy=False)
        parts = [frame.buffer]
        while frame.more:  # The parts of a message come together or not at all.
            frame = self.socket.recv(_NOW, copy=False)
            parts.append(frame.buffer)
        for part in parts:
            self.bytes_received += part.nbytes
        return parts

    def broke(self) -> bool:
        """Whether the connection has ended, or could not be made."""
        broken = False
        while _readable(self.monitor):
            told = recv_monitor_message(self.monitor)
            event, value = int(told["event"]), int(told["value"])
            # No other word follows one about a message that cannot be deciphered.
            broken = bool(event & (BROKEN | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)) or broken
            if event in SHUT_OUT and (
                SHUT_OUT[event] is not HandshakeFailure.MECHANISM_MISMATCH or value == _MECHANISM
            ):
                self.shut_out = SHUT_OUT[event]
        return broken

    def close(self, linger_ms: int = 0) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(linger_ms)


def _readable(socket: zmq.Socket[bytes]) -> bool:
    return bool(int(socket.get(_EVENTS)) & _READABLE)
