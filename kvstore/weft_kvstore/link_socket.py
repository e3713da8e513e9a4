"""The client's socket to one shard: a DEALER, and the monitor that tells when its connection breaks."""

from __future__ import annotations

import zmq
from zmq.utils.monitor import recv_monitor_message

from weft_kvstore.codec import MAX_HEADER_BYTES, Buffer
from weft_kvstore.settings import MAX_FRAME_BYTES

CONNECT_RETRY_MS = 50
CONNECT_RETRY_MAX_MS = 500


class LinkSocket:
    """One connection; a new one is a new object. Belongs to the IO thread. Counts the bytes that pass."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self.bytes_sent = 0
        self.bytes_received = 0
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.sndhwm = 0  # The outbox's credit is the bound.
        self.socket.rcvhwm = 0
        self.socket.reconnect_ivl = CONNECT_RETRY_MS
        self.socket.reconnect_ivl_max = CONNECT_RETRY_MAX_MS
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES + MAX_HEADER_BYTES)
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.socket.connect(endpoint)

    def send(self, parts: list[Buffer]) -> None:
        """Large parts are not copied: they stay as they are until they are acknowledged."""
        self.bytes_sent += sum(len(part) for part in parts)
        self.socket.send_multipart(parts, copy=False)

    def receive(self) -> list[memoryview] | None:
        """The next message; None if there is none."""
        if not self.socket.poll(0):
            return None
        frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
        parts = [frame.buffer for frame in frames]
        self.bytes_received += sum(part.nbytes for part in parts)
        return parts

    def broke(self) -> bool:
        """Whether the connection has broken since it was asked last."""
        broken = False
        while self.monitor.poll(0):
            event = recv_monitor_message(self.monitor)["event"]
            broken = broken or event == zmq.EVENT_DISCONNECTED
        return broken

    def close(self, linger_ms: int = 0) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(linger_ms)
