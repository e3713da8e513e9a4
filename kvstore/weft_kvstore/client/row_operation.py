"""Pushes and pulls of rows of a table: cut into chunks by shard, and put together again."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np

from weft_graph.weft_domain import ID_BYTES
from weft_kernels.row_copies import put_rows
from weft_kvstore.arrays import Array, bytes_of
from weft_kvstore.client.encoders import GradientEncoders
from weft_kvstore.client.operation import CALLS, Operation, SentSegment
from weft_kvstore.client.plan import TableKey
from weft_kvstore.futures import StoreFuture
from weft_kvstore.rows.rows import distinct_ids, last_rows, spread_rows, summed_rows
from weft_kvstore.sharding import Routing, chunks_of
from weft_kvstore.wire.codec import ProtocolError, RowSource, ValueSegment
from weft_kvstore.wire.messages import PayloadKind, Reading, SentEntry
from weft_kvstore.wire.outbox import CALL_PRIORITY, BufferSource, OutSegment

TAKEN_BYTES: Final = 1 << 16
"""A message with so many bytes of rows, which are all that was asked for, becomes the caller's array."""

Ids: TypeAlias = tuple[Array, int | None]
"""Ids (n) that fit the table, and what `before_padding` says of them."""

_ROWS_ALONE: Final = frozenset({PayloadKind.VALUE, PayloadKind.RESTORED_STATE})
"""What a shard that has none of the rows need not know of."""


class RowOperation(Operation):
    """Sends `rows` (n, ...row) of a table, or pulls rows of it, or pulls rows that have seen those that it sends.

    It sends the rows of the ids `sent`: gradients of `step`, or values at that version. It pulls those of the ids
    `wanted` at `version`, as a new array of a `shape` (n, ...row), or state arrays by name where there are `names`.
    With both, the rows that a shard answers with say that it has those that were sent; where both are the same array of
    ids, these travel once.
    """

    def __init__(
        self,
        future: StoreFuture[Any],
        table: TableKey,
        *,
        payload_kind: PayloadKind = PayloadKind.GRADIENT,
        step: int = 0,
        sent: Ids | None = None,
        rows: Array | None = None,
        version: int = 0,
        reading: Reading = Reading.OWN,
        wanted: Ids | None = None,
        shape: tuple[int, ...] | None = None,
        names: tuple[str, ...] | None = None,
        priority: int = 0,
    ) -> None:
        super().__init__(future)
        self.asked: dict[int, list[tuple[int, int, int, int]]] = {}
        self._table, self.priority = table, priority
        self.payload_kind, self.step, self._sent, self._rows = payload_kind, step, sent, rows
        self._shape = shape
        if sent is not None:
            self.sends = (table.key_index,)
            if payload_kind is PayloadKind.GRADIENT:
                self.pushes = step
            else:
                self.sets = self.sends
        if wanted is not None:
            self.is_request = self.is_pull = True
            self.reads = (table.key_index,)
            self.version, self.names, self.reading = version, names, reading
            self._is_same = sent is not None and wanted[0] is sent[0]
            # Who pulls may change the ids at once; who pushes keeps them until they have arrived.
            self._wanted = wanted if self._is_same else (wanted[0].copy(), wanted[1])

    def prepare(self, routing: Routing, encoders: GradientEncoders | None) -> dict[int, int]:
        """Makes the arrays that rows are received into, and the chunks that it sends."""
        layout, sent = self._table.layout, self._sent
        self._bucket = routing.bucket_of[self._table.key_index]
        self._ahead = self._table.key.priority - self.priority * CALL_PRIORITY
        known = None
        if self.is_pull:
            known = ids, self._index = distinct_ids(*self._wanted)
            self.rows_pulled = len(ids)
            self._arrays: list[Array] = []
            for _ in (None,) if self.names is None else self.names:
                self._arrays.append(np.empty((len(ids), layout.width), layout.dtype))
            self._by_shard = layout.by_shard(ids.view(layout.id_dtype))
            """Which of the rows that are pulled each shard has."""
            self._received: dict[int, tuple[int, bytearray]] = {}
            """How many rows each shard is asked for; and a byte for each array and chunk of them, 1 once it has
            come."""
        if not layout.row_bytes:
            return {}
        pending = {} if sent is None else self._send(*sent, known if self.is_pull and self._is_same else None)
        if known is None or not self._arrays:
            return pending
        for shard, positions in enumerate(self._by_shard):
            rows = self.rows_pulled if positions is None else len(positions)
            if rows:
                chunks = (
                    0 if self._is_same else self._send_ids(shard, ids if positions is None else ids.take(positions))
                )
                self.asked[shard] = [(self._bucket, 0, 0, chunks)]
                self._received[shard] = rows, bytearray(len(self._arrays) * -(-rows // layout.rows_down))
                pending[shard] = len(self._received[shard][1])
        return pending

    def _send(self, ids: Array, count: int | None, known: tuple[Array, Array | None] | None) -> dict[int, int]:
        """Each shard that has rows gets at least one chunk of a push, so that it knows that the slot is in. How many
        chunks each shard has of it. `known`: what `distinct_ids` says, where that is known."""
        layout, kind, rows = self._table.layout, self.payload_kind, self._rows
        assert rows is not None
        values, by_shard = rows.reshape(len(ids), layout.width), None if known is None else self._by_shard
        if count != len(ids) or kind is not PayloadKind.GRADIENT:
            is_sum = kind is PayloadKind.GRADIENT
            given = summed_rows(ids, values, count, known=known) if is_sum else last_rows(ids, values)
            ids, values = given.ids, given.values
        self.rows_pushed = len(ids)
        ids = ids.view(layout.id_dtype)
        pending = {}
        for shard, positions in enumerate(by_shard or layout.by_shard(ids)):
            source = RowSource(ids, values, layout, positions)
            if not source.count and (kind in _ROWS_ALONE or not layout.rows_on(shard)):
                continue
            chunks = pending[shard] = max(-(-source.count // layout.rows_up), 1)
            self._put(shard, kind, self.step, chunks, layout.chunk_bytes, source)
            self._missing += chunks
        return pending

    def _send_ids(self, shard: int, ids: Array) -> int:
        """How many chunks of ids the shard is sent for what it is asked."""
        layout = self._table.layout
        chunks, chunk_bytes = chunks_of(len(ids), layout.ids_up), layout.ids_up * ID_BYTES
        self._put(shard, PayloadKind.IDS, self.version, chunks, chunk_bytes, BufferSource(bytes_of(ids)))
        self._missing += chunks
        return chunks

    def _put(  # noqa: PLR0917  # as a message has it
        self, shard: int, kind: PayloadKind, step: int, chunks: int, chunk_bytes: int, source: RowSource | BufferSource
    ) -> None:
        """Chunks that lie one behind the other, each but the last of `chunk_bytes`."""
        bounds: Array = np.arange(chunks + 1) * chunk_bytes
        bounds[-1] = source.nbytes
        entry = SentEntry(kind, self.number, self._bucket, step, chunks)
        segment: SentSegment = OutSegment(entry, 0, bounds, source, priority=self._ahead, owner=self)
        self.segments.setdefault(shard, []).append(segment)

    def write(self, shard: int, received: ValueSegment) -> int:
        """Copies adjacent chunks to where they belong; those that are a whole array, and large, are that array from now
        on."""
        array, bucket, version, first, count, payload, compressed, owned = received
        if shard not in self.asked:
            return super().write(shard, received)
        if version != self.version:
            self.check_version(version)
        if compressed:
            raise ProtocolError(f"Values.compressed: 1, {self} is of rows, which travel as they are")
        if bucket != self._bucket:
            raise ProtocolError(f"Values.bucket: {bucket}, {self} asks for bucket {self._bucket}")
        (rows_asked, seen), positions, layout = self._received[shard], self._by_shard[shard], self._table.layout
        total = len(seen) // len(self._arrays)
        if array >= len(self._arrays) or first + count > total:
            raise ProtocolError(
                f"Values.first: chunks {first} to {first + count - 1} of array {array}; {self} has {total} chunks "
                f"and {len(self._arrays)} arrays"
            )
        low, high = first * layout.rows_down, min((first + count) * layout.rows_down, rows_asked)
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
        begin = array * total + first
        fresh = seen.count(0, begin, begin + count)
        seen[begin : begin + count] = b"\1" * count
        return fresh

    def result(self) -> Any:
        if not self.is_pull:
            return None
        found = self._arrays if self._index is None else [spread_rows(one, self._index) for one in self._arrays]
        rows, shape = self.rows_pulled if self._index is None else len(self._index), self._shape
        shape = (rows, *self._table.key.shape[1:]) if shape is None else shape
        if self.names is None:
            return found[0].reshape(shape)
        return {name: one.reshape(shape) for name, one in zip(self.names, found, strict=True)}

    def close(self) -> None:
        self._sent = self._rows = None

    def __str__(self) -> str:
        key = self._table.key.key
        if self.sends:
            call, number, _ = CALLS[self.payload_kind]
            return f"{call}{'pull' if self.is_pull else ''} of rows of key {key!r}, {number} {self.step}"
        what = "pull" if self.names is None else "pull of the state"
        return f"{what} of rows of key {key!r}, version {self.version}"
