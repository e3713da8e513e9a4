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
from weft_kvstore.rows.rows import Rows, Wanted
from weft_kvstore.sharding import Routing, chunks_of
from weft_kvstore.wire.codec import ProtocolError, RowSource, ValueRun
from weft_kvstore.wire.messages import PayloadKind, Reading, SentEntry
from weft_kvstore.wire.outbox import CALL_PRIORITY, OneBuffer, OutRun


class PushRowsOperation(Operation):
    """Some rows of a table, a gradient of a step or values at a version; `given` has distinct ids. `place` is the
    table's in the description."""

    def __init__(self, future: Future[Any], table: TableKey, payload_kind: PayloadKind, step: int, given: Rows) -> None:
        super().__init__(future)
        self.payload_kind = payload_kind
        self.place = table.place
        self.step = step
        if payload_kind is not PayloadKind.GRADIENT:
            self.sets = (table.place,)
        self.given = given
        self._key = table.key
        self.rows_pushed = len(given)

    def prepare(self, routing: Routing, encoders: GradientEncoders | None) -> dict[int, int]:
        """Each shard that has rows gets at least one chunk of a push, so that it knows that the slot is in."""
        cut = routing.tables[self.place]
        ids, values = self.given.ids.view(cut.id_dtype), self.given.values
        bucket, priority = routing.bucket_of[self.place], self._key.priority - self.priority * CALL_PRIORITY
        pending: dict[int, int] = {}
        for shard, mine in enumerate(cut.dealt(ids)):
            if not cut.rows_on[shard] * cut.row_bytes:
                continue
            rows = RowSource(ids, values, cut, mine)
            if self.payload_kind is PayloadKind.VALUE and not rows.count:
                continue
            chunks = pending[shard] = chunks_of(rows.count, cut.rows_up)
            entry = SentEntry(self.payload_kind, self.number, bucket, self.step, chunks)
            bounds = _bounds(chunks, cut.chunk_bytes, rows.nbytes)
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
        wanted: Wanted,
        *,
        rows: int,
        names: tuple[str, ...] | None = None,
    ) -> None:
        """Makes the arrays (rows, ...) that the caller will own. Raises MemoryError."""
        super().__init__(future)
        self.version, self.names, self.reading = version, names, reading
        self.reads = (table.place,)
        self._key = table.key
        self._place = table.place
        count, row_shape, cut = 1 if names is None else len(names), table.key.shape[1:], table.cut
        self._cut = cut
        self._wanted = wanted
        self.rows_pulled = len(wanted.ids)
        self._arrays: list[Array] = [np.empty((rows, *row_shape), cut.dtype) for _ in range(count)]
        self._flat = [array.reshape(rows, cut.width) for array in self._arrays]
        if len(wanted.zeros):
            for array in self._flat:
                array[wanted.zeros] = 0
        self._ids: dict[int, Array] = {}
        """What each shard is asked for: distinct and ascending."""
        self._places: dict[int, Array | None] = {}
        self._chunks: dict[int, int] = {}
        """Chunks of each array that each shard answers with."""
        self._seen: dict[tuple[int, int], Array] = {}
        self._bucket = 0
        own = wanted.ids.view(cut.id_dtype)
        for shard, mine in enumerate(cut.dealt(own)):
            if not len(own if mine is None else mine):
                continue
            if mine is None:
                self._ids[shard], self._places[shard] = np.ascontiguousarray(own), wanted.places
            else:
                self._ids[shard] = own.take(mine)
                self._places[shard] = mine if wanted.places is None else wanted.places.take(mine)
            self._chunks[shard] = chunks_of(len(self._ids[shard]), cut.rows_down)

    def prepare(self, routing: Routing, encoders: GradientEncoders | None) -> dict[int, int]:
        self._bucket = routing.bucket_of[self._place]
        self.asked = {
            shard: [(self._bucket, 0, 0, chunks_of(len(ids), self._cut.ids_up))] for shard, ids in self._ids.items()
        }
        arrays = len(self._arrays)
        if not arrays or not self._cut.row_bytes:
            return {}
        return dict(self._chunks) if arrays == 1 else {shard: n * arrays for shard, n in self._chunks.items()}

    def write(self, shard: int, came: ValueRun) -> int:
        if came.version != self.version:
            self.check_version(came.version)
        if came.compressed:
            raise ProtocolError(f"Values.compressed: 1, {self} is of rows, which travel as they are")
        if came.payload is None:
            raise ProtocolError(f"Values.place: 1, {self} has no places for values")
        if came.bucket != self._bucket:
            raise ProtocolError(f"Values.bucket: {came.bucket}, {self} asks for bucket {self._bucket}")
        self._put(shard, came, came.payload)
        seen = self._seen.get((shard, came.array))
        if seen is None:
            total = self._chunks[shard]
            if came.count == total:
                self._seen[shard, came.array] = np.ones(total, np.bool_)
                return total
            seen = self._seen[shard, came.array] = np.zeros(total, np.bool_)
        some = seen[came.first : came.stop]
        fresh = came.count - int(np.count_nonzero(some))
        some[:] = True
        return fresh

    def _put(self, shard: int, came: ValueRun, payload: memoryview) -> None:
        """Copies adjacent chunks into place; those that are a whole array, and large, are that array from now on.
        Raises ProtocolError where they are not of this pull."""
        array, first = came.array, came.first
        stop, total = first + came.count, self._chunks.get(shard, 0)
        if array >= len(self._flat) or stop > total:
            raise ProtocolError(
                f"Values.first: chunks {first} to {stop - 1} of array {array}; {self} has {total} chunks "
                f"and {len(self._flat)} arrays"
            )
        low, high = first * self._cut.rows_down, min(stop * self._cut.rows_down, len(self._ids[shard]))
        if (high - low) * self._cut.row_bytes != payload.nbytes:
            told = (high - low) * self._cut.row_bytes
            raise ProtocolError(f"Values.nbytes: {payload.nbytes}, the rows of {self._key.key!r} have {told}")
        rows: Array = np.frombuffer(payload, self._cut.dtype).reshape(high - low, self._cut.width)
        places = self._places[shard]
        if places is None:
            flat, flags = self._flat[array], rows.flags
            if (
                came.owned
                and rows.nbytes >= TAKEN_BYTES
                and len(rows) == len(flat)
                and flags.writeable
                and flags.aligned
            ):
                self._arrays[array] = rows.reshape(self._arrays[array].shape)
            else:
                flat[low:high] = rows
            return
        mine = places[low:high]
        if self._wanted.ordered and mine[-1] - mine[0] == len(mine) - 1:
            self._flat[array][mine[0] : mine[-1] + 1] = rows
        else:
            put_rows(self._flat[array], mine, rows)

    def result(self) -> Any:
        wanted = self._wanted
        if wanted.copies.size:
            for array in self._flat:
                array[wanted.copies] = array[wanted.sources]
        return self._arrays[0] if self.names is None else dict(zip(self.names, self._arrays, strict=True))

    def __str__(self) -> str:
        what = "pull" if self.names is None else "pull of the state"
        return f"{what} of rows of key {self._key.key!r}, version {self.version}"

    def ids(self, shard: int) -> SentRun:
        chunks = chunks_of(len(self._ids[shard]), self._cut.ids_up)
        entry = SentEntry(PayloadKind.IDS, self.number, self._bucket, self.version, chunks)
        base = bytes_of(self._ids[shard])
        bounds = _bounds(chunks, self._cut.ids_up * ID_BYTES, base.nbytes)
        priority = self._key.priority - self.priority * CALL_PRIORITY
        return OutRun(entry, 0, bounds, OneBuffer(base), priority=priority, owner=self)


def _bounds(chunks: int, a_chunk: int, nbytes: int) -> Array:
    """Where chunks begin and end that lie one behind the other."""
    found: Array = np.arange(chunks + 1) * a_chunk
    found[-1] = nbytes
    return found
