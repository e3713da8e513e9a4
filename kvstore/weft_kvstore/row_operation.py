"""Pushes and pulls of rows of a table: cut into chunks by shard, and put together again."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np

from weft_graph.weft_domain import ID_BYTES
from weft_kernels.row_copies import put_rows
from weft_kvstore.buffers import bytes_of
from weft_kvstore.calls import Asked, Sent
from weft_kvstore.cargo import Cargo, SentEntry
from weft_kvstore.codec import ProtocolError
from weft_kvstore.operation import Link, Operation, PullOperation, SendOperation, SentRun
from weft_kvstore.out_run import OneBuffer, OutRun
from weft_kvstore.routing import Routing
from weft_kvstore.row_chunks import packed
from weft_kvstore.row_cut import RowCut, chunks_of
from weft_kvstore.rows import Rows, wanted_rows
from weft_kvstore.store import Array


class PushRowsOperation(SendOperation):
    """Some rows of a table; `given` has distinct ids."""

    def __init__(self, future: Future[Any], sent: Sent, given: Rows) -> None:
        super().__init__(future, sent)
        self.given = given

    @property
    def rows_pushed(self) -> int:
        return len(self.given.ids)

    def cut(self, routing: Routing) -> dict[int, list[SentRun]]:
        """Each shard that has rows gets at least one chunk of a push, so that it knows that the slot is in."""
        sent = self.sent
        cut = routing.tables[sent.place]
        found: dict[int, list[SentRun]] = {}
        given = Rows(self.given.ids.view(cut.id_dtype), self.given.values)
        for shard, mine in enumerate(cut.dealt(given.ids)):
            if not cut.bytes_on(shard) or (sent.cargo is Cargo.VALUE and not len(mine)):
                continue
            base = bytes_of(packed(given, cut, mine if cut.shards > 1 else None))
            chunks = chunks_of(len(mine), cut.rows_up)
            entry = SentEntry(sent.cargo, self.number, routing.lot_of[sent.place], sent.step, chunks)
            found[shard] = _run_of(entry, base, cut.chunk_bytes, priority=sent.priority, owner=self)
        return found


class PullRowsOperation(PullOperation):
    """Rows of a table, as `pull_rows` of the store gives them."""

    def __init__(
        self, future: Future[Any], asked: Asked, *, cut: RowCut, ids: Array, row_shape: tuple[int, ...]
    ) -> None:
        """Makes the arrays that the caller will own. Raises MemoryError."""
        super().__init__(future, asked)
        self._cut = cut
        self._wanted = wanted_rows(ids)
        self._arrays: list[Array] = [np.empty((len(ids), *row_shape), cut.dtype) for _ in range(asked.array_count)]
        self._flat = [array.reshape(len(ids), cut.width) for array in self._arrays]
        for array in self._flat:
            array[self._wanted.zeros] = 0
        self.ids: dict[int, Array] = {}
        """What each shard is asked for: distinct and ascending."""
        self._places: dict[int, Array] = {}
        self._runs: dict[int, list[SentRun]] = {}
        self._seen: set[tuple[int, int, int]] = set()
        self._lot = 0
        own = self._wanted.ids.view(cut.id_dtype)
        for shard, mine in enumerate(cut.dealt(own)):
            if len(mine):
                self.ids[shard] = np.ascontiguousarray(own) if cut.shards == 1 else own[mine]
                self._places[shard] = self._wanted.places if cut.shards == 1 else self._wanted.places[mine]

    @property
    def rows_pulled(self) -> int:
        return len(self._wanted.ids)

    def prepare(self, routing: Routing) -> dict[int, int]:
        self._lot = routing.lot_of[self.asked.place]
        arrays = self.asked.array_count
        if not arrays or not self._cut.row_bytes:
            return {}
        return {shard: chunks_of(len(ids), self._cut.rows_down) * arrays for shard, ids in self.ids.items()}

    def asks(self, shard: int) -> list[tuple[int, int, int]]:
        return [(self._lot, 0, 0)]

    def chunks(self, shard: int) -> int:
        return chunks_of(len(self.ids[shard]), self._cut.ids_up)

    def make(self, link: Link) -> None:
        """After a broken connection all ids are sent again, for what came of them is forgotten."""
        super().make(link)
        link.withdraw(self._runs.get(link.shard, ()))
        self._runs[link.shard] = self._cut_ids(link.shard)
        link.put(self._runs[link.shard])

    def give_up(self, link: Link) -> None:
        link.withdraw(self._runs.get(link.shard, ()))
        super().give_up(link)

    def resent(self, shard: int, run: SentRun) -> None:
        self._runs[shard].append(run)

    def let_go(self) -> None:
        self._runs = {}

    def write(  # noqa: PLR0917  # a column of the message each
        self,
        shard: int,
        array: int,
        lot: int,
        version: int,
        first: int,
        count: int,
        payload: memoryview,
        *,
        compressed: bool,
    ) -> int:
        self.check_version(version)
        if compressed:
            raise ProtocolError(f"Values.compressed: 1, {self} is of rows, which travel as they are")
        if lot != self._lot:
            raise ProtocolError(f"Values.lot: {lot}, {self} asks for lot {self._lot}")
        run = range(first, first + count)
        self.copy(shard, array, run, payload)
        found = {(shard, array, index) for index in run} - self._seen
        self._seen |= found
        return len(found)

    def copy(self, shard: int, array: int, run: range, payload: memoryview) -> None:
        """Copies adjacent chunks into place. Raises ProtocolError where they are not of this pull."""
        places = self._places.get(shard)
        total = 0 if places is None else chunks_of(len(places), self._cut.rows_down)
        if places is None or array >= len(self._flat) or run.stop > total:
            raise ProtocolError(
                f"Values.first: chunks {run.start} to {run.stop - 1} of array {array}; {self} has {total} chunks "
                f"and {len(self._flat)} arrays"
            )
        mine = places[run.start * self._cut.rows_down : run.stop * self._cut.rows_down]
        if len(mine) * self._cut.row_bytes != payload.nbytes:
            told = len(mine) * self._cut.row_bytes
            raise ProtocolError(f"Values.nbytes: {payload.nbytes}, the rows of {self.asked.name!r} have {told}")
        rows: Array = np.frombuffer(payload, self._cut.dtype).reshape(len(mine), self._cut.width)
        if self._wanted.ordered and mine[-1] - mine[0] == len(mine) - 1:
            self._flat[array][mine[0] : mine[-1] + 1] = rows
        else:
            put_rows(self._flat[array], mine, rows)

    def result(self) -> Any:
        wanted = self._wanted
        if wanted.copies.size:
            for array in self._flat:
                array[wanted.copies] = array[wanted.sources]
        return self.asked.named(self._arrays)

    def _cut_ids(self, shard: int) -> list[SentRun]:
        asked = self.asked
        entry = SentEntry(Cargo.IDS, self.number, self._lot, asked.version, self.chunks(shard))
        a_chunk = self._cut.ids_up * ID_BYTES
        return _run_of(entry, bytes_of(self.ids[shard]), a_chunk, priority=asked.priority, owner=self)


def _run_of(entry: SentEntry, base: memoryview, a_chunk: int, *, priority: int, owner: Operation) -> list[SentRun]:
    """All chunks of a shard, which are one run."""
    bounds: Array = np.minimum(np.arange(entry.chunks + 1) * a_chunk, base.nbytes)
    return [OutRun(entry, 0, bounds, OneBuffer(base), priority=priority, owner=owner)]
