"""Messages to and from the parts of a ZeroMQ message: a header, and a payload where the message carries slices or rows.

header = magic b"WEFT", one byte of format version, the message's number on its connection, one MessagePack map. Nothing
in it is executable. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from typing import Final, TypeVar

import msgspec
import numpy as np

from weft_graph.weft_domain import ID_BYTES
from weft_kernels.row_copies import take_rows
from weft_kvstore.arrays import Array, Buffer, bytes_of
from weft_kvstore.settings import MAX_FRAME_BYTES
from weft_kvstore.sharding import RowLayout, chunks_of
from weft_kvstore.structs import Reader
from weft_kvstore.wire.messages import (
    Message,
    PayloadKind,
    Push,
    Reply,
    Request,
    SentRow,
    ValueRow,
    Values,
    nbytes_of,
)

MAGIC: Final = b"WEFT"
FORMAT_VERSION: Final = 15
MAX_HEADER_BYTES: Final = 1 << 20
MAX_PARTS: Final = 2

_M = TypeVar("_M")

_PREFIX: Final = MAGIC + bytes([FORMAT_VERSION])
_HEAD: Final = struct.Struct(f"<{len(_PREFIX)}sQ")
"""What is before the map: the prefix and the message's number."""
_BODY: Final = _HEAD.size

_NO_PAYLOAD: Final = memoryview(b"")

_encoder = msgspec.msgpack.Encoder()
_requests: Final[Reader[Request]] = Reader(Request)
_replies: Final[Reader[Reply]] = Reader(Reply)


class ProtocolError(Exception):
    """Bytes that are no message of this format; the text names the part and the field."""


def encode(message: Message, payload: Buffer | None = None, number: int = 0) -> list[Buffer]:
    """The parts of a message; the payload is not copied. `number` counts the messages that this side sends on the
    connection, from 1; 0 for one that is not counted."""
    header = _HEAD.pack(_PREFIX, number) + _encoder.encode(message)
    return [header] if payload is None else [header, payload]


def _decode(parts: Sequence[Buffer], reader: Reader[_M]) -> tuple[_M, memoryview, int]:
    """The message, its payload (a view of the second part), and its number. Raises ProtocolError."""
    if not 1 <= len(parts) <= MAX_PARTS:
        raise ProtocolError(f"a message has 1 or {MAX_PARTS} parts, not {len(parts)}")
    header = memoryview(parts[0])
    payload = memoryview(parts[1]) if len(parts) == 2 else _NO_PAYLOAD
    if header.nbytes > MAX_HEADER_BYTES:
        raise ProtocolError(f"header: {header.nbytes} bytes, more than {MAX_HEADER_BYTES}")
    prefix, number = _HEAD.unpack_from(header) if header.nbytes >= _BODY else (bytes(header[: len(_PREFIX)]), 0)
    if prefix != _PREFIX:
        if not prefix.startswith(MAGIC):
            raise ProtocolError(f"header: begins with {prefix[:4]!r}, not {MAGIC!r}")
        found = prefix[4] if len(prefix) > len(MAGIC) else None
        raise ProtocolError(f"header: format version {found}, this side speaks {FORMAT_VERSION}")
    try:
        message = reader.from_msgpack(header[_BODY:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"header: {error}") from error
    kind = type(message)
    if kind is Push or kind is Values:
        _check_payload(message, payload, has_payload=len(parts) == 2)  # type: ignore[arg-type]  # it is one of both
    elif len(parts) == 2:
        raise ProtocolError(f"payload: {kind.__name__} has none, {payload.nbytes} bytes came")
    return message, payload, number


decode_request = partial(_decode, reader=_requests)
"""Decodes a message of a client: see `_decode`."""

decode_reply = partial(_decode, reader=_replies)
"""Decodes a message of a shard: see `_decode`."""


def _check_payload(message: Push | Values, payload: memoryview, *, has_payload: bool) -> None:
    name, total = type(message).__name__, sum(map(nbytes_of, message.segments))
    received = sum([nbytes for _, nbytes in message.at]) if message.at else payload.nbytes
    if has_payload and message.at:
        raise ProtocolError(f"payload: {name} has it in shared memory, {payload.nbytes} bytes came")
    if not has_payload and not message.at:
        raise ProtocolError(f"payload: {name} has one, none came")
    if received != total:
        raise ProtocolError(f"payload: {received} bytes came, nbytes of {name}.segments adds up to {total}")
    if total > MAX_FRAME_BYTES:
        raise ProtocolError(f"payload: {total} bytes, more than {MAX_FRAME_BYTES}")


# --- The segments of a frame, each with its bytes ---------------------------------------------------------------------


def buffers_at(message: Push | Values, memory: Array) -> list[memoryview]:
    """The payload of a message that is in its sender's `memory`. Raises ProtocolError for offsets beyond it."""
    for offset, nbytes in message.at:
        if offset + nbytes > memory.nbytes:
            name = type(message).__name__
            raise ProtocolError(f"{name}.at: bytes {offset} to {offset + nbytes} of memory that has {memory.nbytes}")
    return [memoryview(memory[offset : offset + nbytes]) for offset, nbytes in message.at]  # type: ignore[arg-type]


def _split(buffers: Sequence[memoryview], rows: Sequence[SentRow | ValueRow]) -> list[Sequence[memoryview]]:
    """The payload split into the segments of these rows, whose bytes add up to it."""
    found: list[Sequence[memoryview]] = []
    number = begin = 0
    for nbytes in map(nbytes_of, rows):
        some: list[memoryview] = []
        left = nbytes
        while left or not some:
            view = buffers[number][begin : begin + left]
            some.append(view)
            begin, left = begin + view.nbytes, left - view.nbytes
            if begin == buffers[number].nbytes and number + 1 < len(buffers):
                number, begin = number + 1, 0
        found.append(some)
    return found


class PushSegment(msgspec.Struct, frozen=True):
    """A segment of a `push`: slices `first` to `first + count` of a bucket, or as many of `chunks` chunks of a table's
    rows or ids. `buffers` are their bytes, in order.

    `step` is the version of a value, `request` the number of the client's call. Where the bytes are `shared`, the
    client may change them at any time.
    """

    payload_kind: PayloadKind
    request: int
    bucket: int
    step: int
    first: int
    count: int
    chunks: int
    buffers: Sequence[memoryview]
    shared: bool = False

    @property
    def stop(self) -> int:
        return self.first + self.count

    @property
    def payload(self) -> memoryview:
        """Its bytes."""
        return self.buffers[0] if len(self.buffers) == 1 else memoryview(b"".join(self.buffers))

    def copied(self) -> PushSegment:
        """The segment with a private copy of its bytes."""
        return msgspec.structs.replace(self, buffers=[memoryview(bytearray().join(self.buffers))], shared=False)


def push_segments(push: Push, buffers: Sequence[memoryview], *, shared: bool = False) -> list[PushSegment]:
    """The segments of a frame; the codec has checked that `nbytes` adds up."""
    rows, found = push.segments, []
    split = [buffers] if len(rows) == 1 else _split(buffers, rows)
    for (payload_kind, request, bucket, step, chunks, first, count, _), some in zip(rows, split, strict=True):
        found.append(PushSegment(payload_kind, request, bucket, step, first, count, chunks, some, shared))
    return found


class ValueSegment(msgspec.Struct, frozen=True):
    """A segment of `values`: slices, or chunks, `first` to `first + count` of a bucket at a version, of array number
    `array` of the pull.

    `payload` has their bytes, encoded if they are `compressed`. `owned`: it is a whole message's payload, which nobody
    else reads or writes.
    """

    array: int
    bucket: int
    version: int
    first: int
    count: int
    payload: memoryview
    compressed: bool = False
    owned: bool = False

    @property
    def stop(self) -> int:
        return self.first + self.count


def value_segments(values: Values, buffers: Sequence[memoryview]) -> list[tuple[int, ValueSegment]]:
    """The segments of a frame, each with the request that it answers; the codec has checked that `nbytes` adds up."""
    rows, found = values.segments, []
    split = [buffers] if len(rows) == 1 else _split(buffers, rows)
    owned = len(rows) == 1 and not values.at
    for (request, array, bucket, version, compressed, first, count, _), some in zip(rows, split, strict=True):
        payload = some[0] if len(some) == 1 else memoryview(b"".join(some))
        found.append((request, ValueSegment(array, bucket, version, first, count, payload, compressed, owned)))
    return found


# --- Chunks of rows and of ids as bytes: see `row_layout` for how they are cut ----------------------------------------
# What comes is checked before it is used.


class RowSource:
    """The bytes of the chunks for a shard: of all rows, or of those at `positions` (m) int64. Chunks that are sent
    together are [ids][values]. They are copied when they are sent, so the arrays must not change until then."""

    __slots__ = ("_ids", "_layout", "_positions", "_values", "count", "nbytes")

    def __init__(self, ids: Array, values: Array, layout: RowLayout, positions: Array | None = None) -> None:
        self.count = len(ids) if positions is None else len(positions)
        self._ids = np.ascontiguousarray(ids)
        self._values = np.ascontiguousarray(values).reshape(len(ids), layout.width)
        self._layout = layout
        self._positions = positions
        self.nbytes = self.count * (ID_BYTES + layout.row_bytes)

    def __call__(self, start: int, stop: int) -> Sequence[Buffer]:
        """Bytes `start` to `stop`, which are whole chunks."""
        layout, row_bytes = self._layout, self._layout.row_bytes
        low = start // layout.chunk_bytes * layout.rows_up
        count = (stop - start) // (ID_BYTES + row_bytes)
        if self._positions is None:
            ids, values = bytes_of(self._ids), bytes_of(self._values)
            return ids[low * ID_BYTES : (low + count) * ID_BYTES], values[low * row_bytes : (low + count) * row_bytes]
        some, middle = self._positions[low : low + count], count * ID_BYTES
        joined = np.empty(middle + count * row_bytes, np.uint8)
        # `mode` is what lets NumPy write into `out` without a copy; no position is outside.
        self._ids.take(some, out=joined[:middle].view(self._ids.dtype), mode="clip")
        take_rows(self._values, some, joined[middle:].view(layout.dtype).reshape(count, layout.width))
        return (joined.data,)


class RowReader:
    """Reads the chunks of a table's rows, or of ids of them, that come to a shard, and are checked before they are
    read. `key` is the table's name."""

    __slots__ = ("_key", "_layout", "_most_chunks", "_shard")

    def __init__(self, layout: RowLayout, shard: int, key: str) -> None:
        self._layout, self._shard, self._key = layout, shard, key
        rows = layout.rows_on(shard)
        self._most_chunks = {some: chunks_of(rows, some) for some in (layout.rows_up, layout.ids_up)}
        """By the rows of a full chunk."""

    def rows(self, segment: PushSegment) -> tuple[Array, Array]:
        """The rows of a segment of a push: their indices on the shard, a new array that ascends, and values, which may
        be written: they are copied where the payload is no place for that."""
        layout, payload = self._layout, segment.payload
        count = payload.nbytes // (ID_BYTES + layout.row_bytes)
        indices = layout.indices_of(np.frombuffer(payload, layout.id_dtype, count))
        values: Array = np.frombuffer(payload, layout.dtype, count * layout.width, count * ID_BYTES)
        flags = values.flags
        if not (flags.writeable and flags.aligned):
            values = values.copy()
        return indices, values.reshape(count, layout.width)

    def ids(self, segment: PushSegment) -> Array:
        """The ids of a segment of a pull, as indices on the shard: a new array that ascends."""
        return self._layout.indices_of(np.frombuffer(segment.payload, self._layout.id_dtype))

    def check_chunks(self, chunks: int, chunk_rows: int) -> None:
        """Raises ProtocolError for more chunks than distinct rows can fill."""
        most = self._most_chunks[chunk_rows]
        if not 1 <= chunks <= most:
            rows = self._layout.rows_on(self._shard)
            raise ProtocolError(f"chunks: {chunks} of key {self._key!r}; its {rows} rows here take {most}")

    def check(self, segment: PushSegment) -> None:
        """Raises ProtocolError, naming the field, for chunks that there are not, that have another length, or whose ids
        are none of rows here, in ascending order."""
        payload, layout, key = segment.payload, self._layout, self._key
        chunk_rows, row = layout.rows_up, ID_BYTES + layout.row_bytes
        if segment.payload_kind == PayloadKind.IDS:
            chunk_rows, row = layout.ids_up, ID_BYTES
        chunks, count, stop, full = segment.chunks, segment.count, segment.first + segment.count, chunk_rows * row
        self.check_chunks(chunks, chunk_rows)
        if stop > chunks:
            raise ProtocolError(f"Push.first: chunks {segment.first} to {stop - 1} of key {key!r}, there are {chunks}")
        last = payload.nbytes - (count - 1) * full
        is_end = 0 <= last <= full and last % row == 0 and (last > 0 or chunks == 1)
        if last != full if stop < chunks else not is_end:
            detail = f"chunks {segment.first} to {stop - 1} of {chunks} of key {key!r}, {full} bytes a full one"
            raise ProtocolError(f"Push.nbytes: {payload.nbytes} for {detail}")
        ids: Array = np.frombuffer(payload, layout.id_dtype, payload.nbytes // row)
        if not ids.size:
            return
        if not np.logical_and.reduce(ids[1:] > ids[:-1]):
            raise ProtocolError(f"ids: rows of key {key!r} that do not ascend")
        if layout.growth is None and not 0 <= ids[0] <= ids[-1] < layout.rows:
            raise ProtocolError(f"ids: rows {ids[0]} to {ids[-1]} of key {key!r}, which has {layout.rows}")
        if layout.shards > 1 and not np.logical_and.reduce(layout.shards_of(ids) == self._shard):
            raise ProtocolError(f"ids: rows of key {key!r} that are not on shard {self._shard} of {layout.shards}")
