"""Pushes and pulls of rows of a table: cut into chunks by shard, and put together again."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Final

import numpy as np

from weft_graph.weft_domain import ID_BYTES
from weft_kernels.row_copies import put_rows
from weft_kvstore.arrays import Array, bytes_of
from weft_kvstore.client.encoders import GradientEncoders
from weft_kvstore.client.operation import CALLS, Operation, SentRun
from weft_kvstore.client.plan import TableKey
from weft_kvstore.rows.rows import Rows, spread_rows
from weft_kvstore.sharding import Routing, chunks_of
from weft_kvstore.wire.codec import ProtocolError, RowSource, ValueRun
from weft_kvstore.wire.messages import PayloadKind, Reading, SentEntry
from weft_kvstore.wire.outbox import CALL_PRIORITY, BufferSource, OutRun


class PushRowsOperation(Operation):
    """Some rows of a table, a gradient of a step or values at a version; `given` has distinct ids. `key_index` is the
    table's in the description."""

    def __init__(self, future: Future[Any], table: TableKey, payload_kind: PayloadKind, step: int, given: Rows) -> None:
        super().__init__(future)
        self.payload_kind = payload_kind
        self.key_index = table.key_index
        self.step = step
        if payload_kind is not PayloadKind.GRADIENT:
            self.sets = (table.key_index,)
        self.given = given
        self._key = table.key
        self.rows_pushed = len(given)

    def prepare(self, routing: Routing, encoders: GradientEncoders | None) -> dict[int, int]:
        """Each shard that has rows gets at least one chunk of a push, so that it knows that the slot is in."""
        layout = routing.tables[self.key_index]
        ids, values = self.given.ids.view(layout.id_dtype), self.given.values
        bucket, priority = routing.bucket_of[self.key_index], self._key.priority - self.priority * CALL_PRIORITY
        pending: dict[int, int] = {}
        for shard, mine in enumerate(layout.dealt(ids)):
            if not layout.rows_on(shard) * layout.row_bytes:
                continue
            rows = RowSource(ids, values, layout, mine)
            if self.payload_kind is PayloadKind.VALUE and not rows.count:
                continue
            chunks = pending[shard] = chunks_of(rows.count, layout.rows_up)
            entry = SentEntry(self.payload_kind, self.number, bucket, self.step, chunks)
            bounds = _bounds(chunks, layout.chunk_bytes, rows.nbytes)
            self.runs[shard] = [OutRun(entry, 0, bounds, rows, priority=priority, owner=self)]
        return pending

    def __str__(self) -> str:
        call, step, _ = CALLS[self.payload_kind]
        return f"{call} of rows of key {self._key.key!r}, {step} {self.step}"


TAKEN_BYTES: Final = 1 << 16
"""A message with so many bytes of rows, which are all that was asked for, becomes the caller's array."""


class PullRowsOperation(Operation):
    """Rows of a table, as `pull_rows` of the store gives them, or of the rule's state: `names` are its arrays."""

    is_request = is_pull = sends_ids = True

    def __init__(
        self,
        future: Future[Any],
        table: TableKey,
        version: int,
        reading: Reading,
        wanted: tuple[Array, Array | None],
        *,
        names: tuple[str, ...] | None = None,
    ) -> None:
        """`wanted` is what `distinct_ids` has of them. Makes the arrays (ids, width) that rows come into. Raises
        MemoryError."""
        super().__init__(future)
        self.version, self.names, self.reading = version, names, reading
        self.reads = (table.key_index,)
        self._table = table
        ids, self._index = wanted
        self.rows_pulled = len(ids)
        layout = self._layout = table.layout
        self._arrays: list[Array] = [
            np.empty((len(ids), layout.width), layout.dtype) for _ in ((None,) if names is None else names)
        ]
        own = ids.view(layout.id_dtype)
        self._ids: dict[int, tuple[Array, Array | None]] = {}
        """What each shard is asked for, distinct and ascending, and where its rows go; None: all of the array."""
        self._received: dict[int, bytearray] = {}
        """A byte for each array and chunk that each shard answers with, 1 once it has come."""
        for shard, mine in enumerate(layout.dealt(own)):
            some = own.copy() if mine is None else own.take(mine)
            if len(some):
                self._ids[shard] = some, mine
                self._received[shard] = bytearray(len(self._arrays) * chunks_of(len(some), layout.rows_down))
        self._bucket = 0

    def prepare(self, routing: Routing, encoders: GradientEncoders | None) -> dict[int, int]:
        self._bucket = routing.bucket_of[self._table.key_index]
        self.asked = {
            shard: [(self._bucket, 0, 0, chunks_of(len(ids), self._layout.ids_up))]
            for shard, (ids, _) in self._ids.items()
        }
        return {
            shard: len(received) for shard, received in self._received.items() if received and self._layout.row_bytes
        }

    def write(self, shard: int, received: ValueRun) -> int:
        """Copies adjacent chunks into place; those that are a whole array, and large, are that array from now on."""
        array, bucket, version, first, count, payload, compressed, owned = received
        if version != self.version:
            self.check_version(version)
        if compressed:
            raise ProtocolError(f"Values.compressed: 1, {self} is of rows, which travel as they are")
        if bucket != self._bucket:
            raise ProtocolError(f"Values.bucket: {bucket}, {self} asks for bucket {self._bucket}")
        ids, positions = self._ids.get(shard, (np.zeros(0, np.int64), None))
        layout, total = self._layout, len(self._received.get(shard, b"")) // max(len(self._arrays), 1)
        if array >= len(self._arrays) or first + count > total:
            raise ProtocolError(
                f"Values.first: chunks {first} to {first + count - 1} of array {array}; {self} has {total} chunks "
                f"and {len(self._arrays)} arrays"
            )
        low, high = first * layout.rows_down, min((first + count) * layout.rows_down, len(ids))
        if (high - low) * layout.row_bytes != payload.nbytes:
            detail = f"the rows of {self._table.key.key!r} have {(high - low) * layout.row_bytes}"
            raise ProtocolError(f"Values.nbytes: {payload.nbytes}, {detail}")
        rows: Array = np.frombuffer(payload, layout.dtype).reshape(high - low, layout.width)
        if positions is not None:
            put_rows(self._arrays[array], positions[low:high], rows)
        elif owned and count == total and rows.nbytes >= TAKEN_BYTES and rows.flags.writeable and rows.flags.aligned:
            self._arrays[array] = rows
        else:
            self._arrays[array][low:high] = rows
        seen, begin = self._received[shard], array * total + first
        fresh = seen.count(0, begin, begin + count)
        seen[begin : begin + count] = b"\1" * count
        return fresh

    def result(self) -> Any:
        found = self._arrays if self._index is None else [spread_rows(one, self._index) for one in self._arrays]
        shaped = [one.reshape(len(one), *self._table.key.shape[1:]) for one in found]
        return shaped[0] if self.names is None else dict(zip(self.names, shaped, strict=True))

    def __str__(self) -> str:
        what = "pull" if self.names is None else "pull of the state"
        return f"{what} of rows of key {self._table.key.key!r}, version {self.version}"

    def ids(self, shard: int) -> SentRun:
        base = bytes_of(self._ids[shard][0])
        ((bucket, _, _, chunks),) = self.asked[shard]
        entry = SentEntry(PayloadKind.IDS, self.number, bucket, self.version, chunks)
        bounds = _bounds(chunks, self._layout.ids_up * ID_BYTES, base.nbytes)
        priority = self._table.key.priority - self.priority * CALL_PRIORITY
        return OutRun(entry, 0, bounds, BufferSource(base), priority=priority, owner=self)


def _bounds(chunks: int, a_chunk: int, nbytes: int) -> Array:
    """Where chunks begin and end that lie one behind the other."""
    found: Array = np.arange(chunks + 1) * a_chunk
    found[-1] = nbytes
    return found
