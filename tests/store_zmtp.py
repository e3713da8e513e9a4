"""ZMTP framing read off a byte stream, after RFC 23/ZMTP 3.0 and 37/ZMTP 3.1, for the NULL mechanism."""

from __future__ import annotations

GREETING_BYTES = 64
MORE, LONG, COMMAND = 1, 2, 4


class ZmtpReader:
    """Turns the bytes of one direction of a ZeroMQ connection into messages, each a list of frames."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._greeted = False
        self._frames: list[bytes] = []

    def feed(self, data: bytes) -> list[list[bytes]]:
        """The messages that these bytes complete. Commands (READY, PING, ...) are left out."""
        self._pending += data
        if not self._greeted:
            if len(self._pending) < GREETING_BYTES:
                return []
            del self._pending[:GREETING_BYTES]
            self._greeted = True
        messages = []
        while (frame := self._next_frame()) is not None:
            flags, body = frame
            if flags & COMMAND:
                continue
            self._frames.append(body)
            if not flags & MORE:
                messages.append(self._frames)
                self._frames = []
        return messages

    def _next_frame(self) -> tuple[int, bytes] | None:
        if not self._pending:
            return None
        flags = self._pending[0]
        head = 9 if flags & LONG else 2
        if len(self._pending) < head:
            return None
        size = int.from_bytes(self._pending[1:head], "big")
        if len(self._pending) < head + size:
            return None
        body = bytes(self._pending[head : head + size])
        del self._pending[: head + size]
        return flags, body
