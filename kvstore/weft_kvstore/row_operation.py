"""Pushes and pulls of rows of a table: cut into chunks by shard, and put together again."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from weft_graph.weft_domain import ID_BYTES
from weft_kvstore.buffers import bytes_of
from weft_kvstore.cargo import Cargo
from weft_kvstore.codec import ProtocolError
from weft_kvstore.operation import PullOperation, SendOperation
from weft_kvstore.outbox import OutSlice
from weft_kvstore.routing import Routing
from weft_kvstore.row_chunks import packed
from weft_kvstore.row_cut import RowCut, chunks_of
from weft_kvstore.rows import Rows, wanted_rows
from weft_kvstore.store import Array


class PushRowsOperation(SendOperation):
    """Some rows of a table; `given` has distinct ids."""

    kind = "push of rows"
    rows = True

    def __init__(self, future: Future[Any], name: str, place: int, step: int, given: Rows, *, cargo: Cargo) -> None:
        super().__init__(future, name, place, step, cargo)
        self.given = given

    def cut(self, routing: Routing, priority: int) -> None:
        """Each shard that has rows gets at least one chunk of a push, so that it knows that the slot is in."""
        cut = routing.tables[self.place]
        for shard in range(cut.shards):
            mine = self.given if cut.shards == 1 else _picked(self.given, cut.ids_on(shard, self.given.ids))
            if not cut.rows_on(shard) or not cut.row_bytes or (self.cargo is Cargo.VALUE and not len(mine.ids)):
                continue
            base = bytes_of(packed(mine, cut))
            chunks = chunks_of(len(mine.ids), cut.rows_up)
            entry = (self.cargo, self.number, self.place, self.step, chunks)
            self.slices[shard] = _slices(entry, base, cut.chunk_bytes, chunks, priority=priority, owner=self)


class PullRowsOperation(PullOperation):
    """Rows of a table, as `pull_rows` of the store gives them."""

    rows = True

    def __init__(
        self,
        future: Future[Any],
        name: str,
        place: int,
        version: int,
        names: Sequence[str] | None,
        *,
        settled: bool,
        cut: RowCut,
        ids: Array,
        row_shape: tuple[int, ...],
        priority: int,
    ) -> None:
        """Makes the arrays that the caller will own. Raises MemoryError."""
        super().__init__(future, name, place, version, names, settled=settled)
        self._cut = cut
        self._priority = priority
        self._wanted = wanted_rows(ids)
        self._arrays: list[Array] = [np.empty((len(ids), *row_shape), cut.dtype) for _ in range(self.array_count)]
        self._flat = [array.reshape(len(ids), cut.width) for array in self._arrays]
        for array in self._flat:
            array[self._wanted.zeros] = 0
        self.ids: dict[int, Array] = {}
        """What each shard is asked for: distinct and ascending."""
        self._places: dict[int, Array] = {}
        self._slices: dict[int, list[OutSlice]] = {}
        for shard in range(cut.shards):
            mine = cut.ids_on(shard, self._wanted.ids)
            if mine.any():
                self.ids[shard] = np.ascontiguousarray(self._wanted.ids[mine])
                self._places[shard] = self._wanted.places[mine]

    @property
    def distinct(self) -> int:
        """How many rows travel."""
        return len(self._wanted.ids)

    def asked(self, routing: Routing) -> dict[int, int]:
        if not self.array_count or not self._cut.row_bytes:
            return {}
        return {shard: chunks_of(len(ids), self._cut.rows_down) * self.array_count for shard, ids in self.ids.items()}

    def chunks(self, shard: int) -> int:
        """How many chunks of ids a shard gets."""
        return chunks_of(len(self.ids[shard]), self._cut.ids_up)

    def cut_ids(self, shard: int) -> list[OutSlice]:
        """The chunks of ids for a shard, made anew: after a broken connection all of them are sent again."""
        chunks = self.chunks(shard)
        entry = (Cargo.IDS, self.number, self.place, self.version, chunks)
        base = bytes_of(self.ids[shard])
        self._slices[shard] = _slices(
            entry, base, self._cut.ids_up * ID_BYTES, chunks, priority=self._priority, owner=self
        )
        return self._slices[shard]

    def let_go(self) -> None:
        self._slices = {}

    def sent(self, shard: int) -> list[OutSlice]:
        """The chunks of ids that `cut_ids` made last."""
        return self._slices.get(shard, [])

    def write(self, shard: int, array: int, first: int, count: int, payload: memoryview) -> int:
        places = self._places.get(shard)
        total = 0 if places is None else chunks_of(len(places), self._cut.rows_down)
        if places is None or array >= len(self._flat) or first + count > total:
            raise ProtocolError(
                f"Values.first: chunks {first} to {first + count - 1} of array {array}; {self} has {total} chunks "
                f"and {len(self._flat)} arrays"
            )
        mine = places[first * self._cut.rows_down : (first + count) * self._cut.rows_down]
        if len(mine) * self._cut.row_bytes != payload.nbytes:
            told = len(mine) * self._cut.row_bytes
            raise ProtocolError(f"Values.nbytes: {payload.nbytes}, the rows of {self.name!r} have {told}")
        rows: Array = np.frombuffer(payload, self._cut.dtype).reshape(len(mine), self._cut.width)
        if self._wanted.ordered and mine[-1] - mine[0] == len(mine) - 1:
            self._flat[array][mine[0] : mine[-1] + 1] = rows
        else:
            self._flat[array][mine] = rows
        return self.fresh(shard, array, first, count)

    def result(self) -> Any:
        wanted = self._wanted
        if wanted.copies.size:
            for array in self._flat:
                array[wanted.copies] = array[wanted.sources]
        return self.named(self._arrays)


def _picked(rows: Rows, mine: Array) -> Rows:
    return Rows(rows.ids[mine], rows.values[mine])


def _slices(
    entry: tuple[int, ...], base: memoryview, a_chunk: int, chunks: int, *, priority: int, owner: object
) -> list[OutSlice]:
    return [
        OutSlice(
            entry,
            index,
            base,
            min(index * a_chunk, base.nbytes),
            min((index + 1) * a_chunk, base.nbytes),
            priority=priority,
            owner=owner,
        )
        for index in range(chunks)
    ]
