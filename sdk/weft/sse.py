"""Server-sent events: an incremental parser of the format in the WHATWG HTML standard, section 9.2.

Pure: bytes in, messages out. It splits lines itself, because text readers also split at U+2028 and its like, which may
stand in a log line's JSON and end no line of a stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

MAX_LINE_BYTES = 4 << 20
"""A longer line is no event of this API; without a bound a broken server could fill the memory."""


class SseFormatError(ValueError):
    """The stream is not one of server-sent events."""


@dataclass(frozen=True, slots=True)
class Message:
    """One dispatched event. `id` is the last id seen on the stream, also when the message itself brought none."""

    event: str
    data: str
    id: str


@dataclass(slots=True)
class SseParser:
    """Takes a stream's bytes in order, cut anywhere.

    `_rest` is the line that has no end yet, `_data` the `data` fields since the last blank line. `last_id` and
    `retry_ms` outlive messages, as the standard asks. A stream that ends within a message drops it.
    """

    last_id: str = ""
    retry_ms: int | None = None
    _event: str = ""
    _data: list[str] = field(default_factory=list)
    _rest: bytes = b""
    _begun: bool = False

    def feed(self, chunk: bytes) -> Iterator[Message]:
        """The messages that this chunk ends. Raises SseFormatError for a line without end."""
        buffer = self._rest + chunk
        if not self._begun and len(buffer) >= len(_BYTE_ORDER_MARK):
            buffer, self._begun = buffer.removeprefix(_BYTE_ORDER_MARK), True
        start = 0
        for end in _LINE_END.finditer(buffer):
            if end.group() == b"\r" and end.end() == len(buffer):
                break  # the next chunk may begin with the \n that belongs to it
            message = self._line(buffer[start : end.start()].decode("utf-8", "replace"))
            start = end.end()
            if message is not None:
                yield message
        self._rest = buffer[start:]
        if len(self._rest) > MAX_LINE_BYTES:
            raise SseFormatError(f"a line of more than {MAX_LINE_BYTES} bytes")

    def _line(self, line: str) -> Message | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self.last_id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry_ms = int(value)
        return None

    def _dispatch(self) -> Message | None:
        event, data = self._event, self._data
        self._event, self._data = "", []
        if not data:
            return None
        return Message(event or "message", "\n".join(data), self.last_id)
