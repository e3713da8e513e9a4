"""Pushes and pulls of rows of a table: cut into chunks by shard, and put together again."""

from __future__ import annotations

from collections.abc import Sequence
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

TAKEN_BYTES: Final = 1 << 16
"""A message with so many bytes of rows, which are all that was asked for, becomes the caller's array."""

_ROWS_ALONE: Final = frozenset({PayloadKind.VALUE, PayloadKind.RESTORED_STATE})
"""What a shard that has none of the rows need not know of."""


class RowOperation(Operation):
    """Sends rows of a table, or pulls rows of it, or pulls rows that have seen those that it sends.

    It sends `given`, rows of distinct ids: gradients of `step`, or values at that version. It pulls `wanted` at
    `version`, which is what `distinct_ids` has of the ids: a new array (n, ...row), or state arrays by name where there
    are `names`. With both, the rows that a shard answers with say that it has those that were sent; where `wanted` has
    the ids of `given`, these do not travel again.
    """

    def __init__(
        self,
        future: Future[Any],
        table: TableKey,
        *,
        payload_kind: PayloadKind = PayloadKind.GRADIENT,
        step: int = 0,
        given: Rows | None = None,
        version: int = 0,
        reading: Reading = Reading.OWN,
        wanted: tuple[Array, Array | None] | None = None,
        names: tuple[str, ...] | None = None,
        priority: int = 0,
    ) -> None:
        """Makes the arrays that rows are received into. Raises MemoryError."""
        super().__init__(future)
        self._table, self._layout, self.priority = table, table.layout, priority
        self.payload_kind, self.step, self._given = payload_kind, step, given
        self.version, self.names, self.reading = version, names, reading
        self._bucket = 0
        self._missing = 0
        """How many of the chunks that it sends have not been acknowledged."""
        self._dealt: Sequence[Array | None] = ()
        """Which of the rows that are pulled each shard has: see `RowLayout.dealt`."""
        self._ids: dict[int, tuple[int, Array | None]] = {}
        """How many rows each shard is asked for, and their ids, where it is sent them."""
        self._received: dict[int, bytearray] = {}
        """A byte for each array and chunk that each shard answers with, 1 once it was received."""
        if given is not None:
            self.rows_pushed = len(given)
            self.sends = (table.key_index,)
            if payload_kind is not PayloadKind.GRADIENT:
                self.sets = self.sends
        self._asks_for_given = given is not None and wanted is not None and wanted[0] is given.ids
        if wanted is None:
            return
        self.is_request = self.is_pull = True
        self.reads = (table.key_index,)
        ids, self._index = wanted
        self.rows_pulled = len(ids)
        layout, count = self._layout, 1 if names is None else len(names)
        self._arrays: list[Array] = [np.empty((len(ids), layout.width), layout.dtype) for _ in range(count)]
        own = ids.view(layout.id_dtype)
        self._dealt = layout.dealt(own)
        for shard, mine in enumerate(self._dealt):
            rows = len(own) if mine is None else len(mine)
            if rows and count:
                some = None if self._asks_for_given else own.copy() if mine is None else own.take(mine)
                self._ids[shard] = rows, some
                self._received[shard] = bytearray(count * chunks_of(rows, layout.rows_down))

    def prepare(self, routing: Routing, encoders: GradientEncoders | None) -> dict[int, int]:
        self._bucket = routing.bucket_of[self._table.key_index]
        if not self._layout.row_bytes:
            return {}
        pending = {} if self._given is None else self._send(self._given)
        self.asked = {shard: [(self._bucket, 0, 0, self._send_ids(shard))] for shard in self._ids}
        self._missing = sum(run.count for runs in self.runs.values() for run in runs)
        return pending | {shard: len(received) for shard, received in self._received.items()}

    def _send_ids(self, shard: int) -> int:
        """How many chunks of ids the shard is sent for what it is asked: none where it has them with the gradients."""
        _, ids = self._ids[shard]
        if ids is None:
            return 0
        chunks, chunk_bytes = chunks_of(len(ids), self._layout.ids_up), self._layout.ids_up * ID_BYTES
        run = self._run(PayloadKind.IDS, self.version, chunks, chunk_bytes, BufferSource(bytes_of(ids)))
        self.runs.setdefault(shard, []).append(run)
        return chunks

    def _send(self, given: Rows) -> dict[int, int]:
        """Each shard that has rows gets at least one chunk of a push, so that it knows that the slot is in."""
        layout, ids = self._layout, given.ids.view(self._layout.id_dtype)
        pending: dict[int, int] = {}
        for shard, mine in enumerate(self._dealt if self._asks_for_given else layout.dealt(ids)):
            rows = RowSource(ids, given.values, layout, mine)
            if not layout.rows_on(shard) or (not rows.count and self.payload_kind in _ROWS_ALONE):
                continue
            chunks = pending[shard] = chunks_of(rows.count, layout.rows_up)
            self.runs[shard] = [self._run(self.payload_kind, self.step, chunks, layout.chunk_bytes, rows)]
        return pending

    def _run(
        self, kind: PayloadKind, step: int, chunks: int, chunk_bytes: int, source: RowSource | BufferSource
    ) -> SentRun:
        """Chunks that lie one behind the other, each but the last of `chunk_bytes`."""
        bounds: Array = np.arange(chunks + 1) * chunk_bytes
        bounds[-1] = source.nbytes
        entry = SentEntry(kind, self.number, self._bucket, step, chunks)
        priority = self._table.key.priority - self.priority * CALL_PRIORITY
        return OutRun(entry, 0, bounds, source, priority=priority, owner=self)

    def arrived(self, shard: int, count: int) -> bool:
        self._missing -= count
        if self.is_pull and self._missing <= 0 and not self.ended:
            self.future.arrived = True  # type: ignore[attr-defined]  # it is a StoreFuture
        return shard not in self._ids and not self.ended and self.received(shard, count)

    def write(self, shard: int, received: ValueRun) -> int:
        """Copies adjacent chunks to where they belong; those that are a whole array, and large, are that array from now
        on."""
        array, bucket, version, first, count, payload, compressed, owned = received
        if shard not in self._ids:
            return super().write(shard, received)
        if version != self.version:
            self.check_version(version)
        if compressed:
            raise ProtocolError(f"Values.compressed: 1, {self} is of rows, which travel as they are")
        if bucket != self._bucket:
            raise ProtocolError(f"Values.bucket: {bucket}, {self} asks for bucket {self._bucket}")
        (rows_asked, _), positions, seen = self._ids[shard], self._dealt[shard], self._received[shard]
        layout = self._layout
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
        shaped = [one.reshape(len(one), *self._table.key.shape[1:]) for one in found]
        return shaped[0] if self.names is None else dict(zip(self.names, shaped, strict=True))

    def __str__(self) -> str:
        key = self._table.key.key
        if self._given is not None:
            call, number, _ = CALLS[self.payload_kind]
            return f"{call}{'pull' if self.is_pull else ''} of rows of key {key!r}, {number} {self.step}"
        what = "pull" if self.names is None else "pull of the state"
        return f"{what} of rows of key {key!r}, version {self.version}"
