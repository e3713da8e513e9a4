"""Messages to and from the parts of a ZeroMQ message: a header, and a payload where the message carries slices.

header = magic b"WEFT", one byte of format version, one MessagePack map. Nothing in it is executable.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import compress
from operator import attrgetter, not_
from typing import Final, TypeVar

import msgspec

from weft_kvstore.arrays import Buffer
from weft_kvstore.settings import MAX_FRAME_BYTES
from weft_kvstore.structs import Reader
from weft_kvstore.wire.messages import Message, Pull, Push, Reply, Request, Values

MAGIC: Final = b"WEFT"
FORMAT_VERSION: Final = 9
MAX_HEADER_BYTES: Final = 1 << 20

_M = TypeVar("_M")

_PREFIX: Final = MAGIC + bytes([FORMAT_VERSION])

_NO_PAYLOAD: Final = memoryview(b"")

_encoder = msgspec.msgpack.Encoder()
_requests: Final[Reader[Request]] = Reader(Request)
_replies: Final[Reader[Reply]] = Reader(Reply)

_NAMES: Final[dict[type[object], tuple[str, ...]]] = {
    Push: ("payload_kind", "request", "bucket", "step", "first", "count", "chunks", "nbytes"),
    Values: ("request", "array", "bucket", "version", "first", "count", "nbytes", "compressed"),
    Pull: ("request", "bucket", "version", "state", "reading", "first", "count", "chunks", "compressed"),
}
_COLUMNS: Final = {kind: attrgetter(*names) for kind, names in _NAMES.items()}


class ProtocolError(Exception):
    """Bytes that are no message of this format; the text names the part and the field."""


def encode(message: Message, payload: Buffer | None = None) -> list[Buffer]:
    """The parts of a message; the payload is passed on, not copied."""
    header = _PREFIX + _encoder.encode(message)
    return [header] if payload is None else [header, payload]


def _decode(parts: Sequence[Buffer], reader: Reader[_M]) -> tuple[_M, memoryview]:
    """What was said, and its payload, a view of the second part. Raises ProtocolError."""
    if not 1 <= len(parts) <= 2:
        raise ProtocolError(f"a message has 1 or 2 parts, not {len(parts)}")
    header = memoryview(parts[0])
    payload = memoryview(parts[1]) if len(parts) == 2 else _NO_PAYLOAD
    if header.nbytes > MAX_HEADER_BYTES:
        raise ProtocolError(f"header: {header.nbytes} bytes, more than {MAX_HEADER_BYTES}")
    begin = bytes(header[: len(_PREFIX)])
    if begin != _PREFIX:
        if not begin.startswith(MAGIC):
            raise ProtocolError(f"header: begins with {begin[:4]!r}, not {MAGIC!r}")
        found = header[4] if header.nbytes > len(MAGIC) else None
        raise ProtocolError(f"header: format version {found}, this side speaks {FORMAT_VERSION}")
    try:
        message = reader.from_msgpack(header[len(_PREFIX) :])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"header: {error}") from error
    kind = type(message)
    if kind in _COLUMNS:
        _check_columns(message)
    if kind is Push or kind is Values:
        _check_payload(message, payload, whole=len(parts) == 2)  # type: ignore[arg-type]  # it is one of both
    elif len(parts) == 2:
        raise ProtocolError(f"payload: {kind.__name__} has none, {payload.nbytes} bytes came")
    return message, payload


decode_request = partial(_decode, reader=_requests)
"""What a client says: see `_decode`."""

decode_reply = partial(_decode, reader=_replies)
"""What a shard says: see `_decode`."""


def _check_columns(message: object) -> None:
    columns = _COLUMNS[type(message)](message)
    lengths = list(map(len, columns))
    length = lengths[0]
    if lengths.count(length) != len(lengths):
        name, fields = type(message).__name__, _NAMES[type(message)]
        wrong = next(at for at, column in enumerate(columns) if len(column) != length)
        told = f"{name}.{fields[wrong]} has {len(columns[wrong])} entries, {name}.{fields[0]} has {length}"
        raise ProtocolError(f"header: {told}")
    place = getattr(message, "place", ())
    if place and len(place) != length:
        raise ProtocolError(f"header: {type(message).__name__}.place has {len(place)} entries, not {length} or none")
    if type(message) is Push and message.pull is not None:
        _check_columns(message.pull)


def _check_payload(message: Push | Values, payload: memoryview, *, whole: bool) -> None:
    name = type(message).__name__
    if not message.nbytes:
        raise ProtocolError(f"header: {name}.nbytes is empty")
    if 0 in message.count:
        raise ProtocolError(f"header: {name}.count[{message.count.index(0)}] is 0")
    total = sum(message.nbytes)
    if message.at is None and not (message.place and all(message.place)):
        if not whole:
            raise ProtocolError(f"payload: {name} has one, none came")
        told = payload_bytes(message) if message.place else total
        if told != payload.nbytes:
            raise ProtocolError(f"payload: {payload.nbytes} bytes came, {name}.nbytes adds up to {told}")
    elif whole:
        raise ProtocolError(f"payload: {name} has it in the arena, {payload.nbytes} bytes came")
    if total > MAX_FRAME_BYTES:
        raise ProtocolError(f"payload: {total} bytes, more than {MAX_FRAME_BYTES}")


def payload_bytes(message: Push | Values) -> int:
    """The length of a message's payload: that of the runs that are in no places."""
    return sum(compress(message.nbytes, map(not_, message.place)) if message.place else message.nbytes)
