"""Pushes and pulls of rows of a table: cut into chunks by shard, and put together again."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from weft_graph.weft_domain import ID_BYTES
from weft_kernels.row_copies import put_rows
from weft_kvstore.arrays import Array, bytes_of
from weft_kvstore.client.encoders import GradientEncoders
from weft_kvstore.client.operation import PushPull, SentSegment
from weft_kvstore.rows.rows import distinct_ids, last_rows, spread_rows, summed_rows
from weft_kvstore.sharding import Routing, RowLayout, chunks_of
from weft_kvstore.wire.codec import ProtocolError, RowSource, ValueSegment
from weft_kvstore.wire.messages import PayloadKind, SentEntry
from weft_kvstore.wire.outbox import CALL_PRIORITY, BufferSource, OutSegment

TAKEN_BYTES: Final = 1 << 16
"""A message with so many bytes of rows, which are all that was asked for, becomes the caller's array."""

_ROWS_ALONE: Final = frozenset({PayloadKind.VALUE, PayloadKind.RESTORED_STATE})
"""What a shard that has none of the rows need not know of."""


class RowOperation(PushPull):
    """Of rows of a table, which it pulls as a new array of a `shape` (n, ...row), or state arrays by name. Ids that are
    sent and wanted, the same array, travel once."""

    _layout: RowLayout

    def prepare(self, routing: Routing, encoders: GradientEncoders | None) -> dict[int, int]:
        """Makes the arrays that rows are received into, and the chunks that it sends."""
        assert self.keys.layout is not None
        layout = self._layout = self.keys.layout
        self.asked: dict[int, list[tuple[int, int, int, int]]] = {}
        self.segments = {}
        self._bucket = routing.bucket_of[self.keys.key_indices[0]]
        self._ahead = self.keys.keys[0].priority - self.priority * CALL_PRIORITY
        known, is_same = None, False
        if self.is_pull:
            assert self.wanted is not None
            is_same = self.payload_kind is not None and self.ids is not None and self.wanted[0] is self.ids[0]
            known = ids, self._index = distinct_ids(*self.wanted)
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
        pending = {} if self.payload_kind is None else self._send(self.payload_kind, known if is_same else None)
        if known is None or not self._arrays:
            return pending
        for shard, positions in enumerate(self._by_shard):
            rows = self.rows_pulled if positions is None else len(positions)
            if rows:
                chunks = 0 if is_same else self._send_ids(shard, ids if positions is None else ids.take(positions))
                self.asked[shard] = [(self._bucket, 0, 0, chunks)]
                self._received[shard] = rows, bytearray(len(self._arrays) * -(-rows // layout.rows_down))
                pending[shard] = len(self._received[shard][1])
        return pending

    def _send(self, kind: PayloadKind, known: tuple[Array, Array | None] | None) -> dict[int, int]:
        """Each shard that has rows gets at least one chunk of a push, so that it knows that the slot is in. How many
        chunks each shard has of it. `known`: what `distinct_ids` says, where that is known."""
        assert self.ids is not None
        (ids, count), layout = self.ids, self._layout
        values, by_shard = self.arrays.reshape(len(ids), layout.width), None if known is None else self._by_shard
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
        layout = self._layout
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
        (rows_asked, seen), positions, layout = self._received[shard], self._by_shard[shard], self._layout
        total = len(seen) // len(self._arrays)
        if array >= len(self._arrays) or first + count > total:
            raise ProtocolError(
                f"Values.first: chunks {first} to {first + count - 1} of array {array}; {self} has {total} chunks "
                f"and {len(self._arrays)} arrays"
            )
        low, high = first * layout.rows_down, min((first + count) * layout.rows_down, rows_asked)
        if (high - low) * layout.row_bytes != payload.nbytes:
            detail = f"the rows of {self.keys.names[0]!r} have {(high - low) * layout.row_bytes}"
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
        rows, shape = self.rows_pulled if self._index is None else len(self._index), self.shape
        shape = (rows, *self.keys.shapes[0][1:]) if shape is None else shape
        if self.names is None:
            return found[0].reshape(shape)
        return {name: one.reshape(shape) for name, one in zip(self.names, found, strict=True)}

    def close(self) -> None:
        self.ids, self.arrays = None, ()
