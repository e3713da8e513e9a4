"""A table on one shard: what is pushed to it, set and pulled of it, step by step; and how far it may grow. Pure."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator
from functools import partial

import numpy as np

from weft_kvstore.arrays import Array, bytes_of
from weft_kvstore.description.records import Mode, Sparse
from weft_kvstore.merging.steps import Complete
from weft_kvstore.merging.waiting import PIECE_ELEMENTS, Answer, PullWait
from weft_kvstore.rows.memory import TablePlace
from weft_kvstore.rows.rows import Rows, merged
from weft_kvstore.rows.storage import Draw, HeldRows
from weft_kvstore.sharding import RowCut, chunks_of
from weft_kvstore.tables.sets import IdsAhead, RowsAhead, SetsAhead
from weft_kvstore.tables.steps import ChunkRun, RowPushes, TableSteps
from weft_kvstore.tables.values import KeyRules, MakeRows, TableValues
from weft_kvstore.wire.outbox import OneBuffer

# --- A table's rows on one shard: what is pushed to them, set and pulled of them, step by step ------------------------
# Rows are named by their place on the shard, ascending; of a growing table that is the id. They come into being when
# they are first pushed or set.


class TableState(TableSteps[Rows, Rows]):
    """Invariant: `_waiting_bytes` are those of gradients that came since a merge began."""

    __slots__ = ("_pushes", "_table", "_waiting_bytes", "cut", "shard")

    def __init__(
        self,
        spec: KeyRules,
        cut: RowCut,
        shard: int,
        first: MakeRows,
        *,
        sparse: Sparse = Sparse.LAZY,
        draw: Draw | None = None,
        place: TablePlace | None = None,
        salt: int | None = None,
    ) -> None:
        """`draw` makes the numbers by which a growing table admits; `salt` says where ids lie in its index: it changes
        no value, and nobody else should know it. Raises MemoryError where not even the addresses are to be had,
        OSError where the place is none, ValueError where numbers are wanted and missing."""
        a_piece = max(PIECE_ELEMENTS // max(cut.width, 1), 1)
        ahead = _nothing_ahead(cut, shard, a_piece)
        super().__init__(spec, merged, _values_of, ahead, fills=spec.given)
        self.cut = cut
        self.shard = shard
        self._pushes = RowPushes(cut.rows_up)
        self._waiting_bytes = 0
        self._table = TableValues(
            spec, cut, shard, first, a_piece=a_piece, sparse=sparse, draw=draw, place=place, salt=salt
        )

    @property
    def nbytes(self) -> int:
        return self._waiting_bytes

    @property
    def capacity_bytes(self) -> int:
        """Bytes of the values, were every row touched; of a growing table, of those that one call may name."""
        return self.cut.bytes_on(self.shard)

    @property
    def touched(self) -> int:
        """How many rows have come into being, and have not gone."""
        return self._table.rows.count

    @property
    def dropped(self) -> int:
        """Rows of gradients that were dropped, for their ids were not admitted."""
        return self._table.dropped

    @property
    def held(self) -> HeldRows:
        return self._table.rows

    def check(self, slot: int, step: int, *, pushes: bool) -> None:
        super().check(slot, step, pushes=pushes)
        if not pushes:
            self._pushes.check_nothing(slot, step, self.spec.where(slot, step))

    def accept_run(self, slot: int, step: int, run: ChunkRun, chunks: int) -> bool:
        """Takes in a run of a push of so many chunks, as `accept` does: the slot is in when all its chunks are. Raises
        PushRefusedError where it contradicts what is there, or itself."""
        where = self.spec.where(slot, step)
        self.steps.check(slot, step, where, pushes=True)
        new = self._pushes.fitting(slot, step, run, chunks, where)
        if self.steps.is_over(slot, step):
            return False
        rows = self._pushes.add(slot, step, new, chunks)
        return rows is not None and self.accept(slot, step, rows)

    def accept(self, slot: int, step: int, gradient: Rows | None) -> bool:
        gradient = None if gradient is None else self._own(gradient)
        self._waiting_bytes += gradient.nbytes if gradient is not None else 0
        return super().accept(slot, step, gradient)

    def accept_set(self, version: int, value: Rows, origin: Hashable) -> bool:
        return super().accept_set(version, self._own(value), origin)

    def _own(self, rows: Rows) -> Rows:
        """Ids as the table has them: a caller's int64 may name rows of a growing one."""
        wanted = self.cut.id_dtype
        if rows.parts[0][0].dtype == wanted:
            return rows
        return Rows.of([(ids.view(wanted), values) for ids, values in rows.parts])

    def merging(self) -> Generator[None, None, bool]:
        self._waiting_bytes = 0
        return (yield from super().merging())

    @property
    def _parts_begun(self) -> int:
        return self._pushes.begun

    def replace(self, slot: int) -> None:
        super().replace(slot)
        self._pushes.drop(slot)

    def answers(self, wait: PullWait) -> Iterator[Answer | None]:
        places = np.zeros(0, self.cut.id_dtype) if wait.ids is None else wait.ids
        a_chunk, a_piece = self.cut.rows_down, self._table.a_piece
        together = max(a_piece // a_chunk, 1) * a_chunk
        version = self.answered_version(wait)
        read = partial(self._table.reading, of=len(places), version=self.version)
        for number, name in enumerate(self.spec.state if wait.state else (None,)):
            for low in range(0, max(len(places), 1), together):
                some = places[low : low + together]
                if len(some) <= a_piece:
                    array = yield from read(name, some)
                    yield None
                else:
                    array = np.empty((len(some), self.cut.width), self.cut.dtype)
                    for begin in range(0, len(some), a_piece):
                        piece = slice(begin, begin + a_piece)
                        array[piece] = yield from read(name, some[piece])
                        yield None
                chunks = np.arange(chunks_of(len(some), a_chunk) + 1)
                bounds = np.minimum(chunks * a_chunk * self.cut.row_bytes, array.nbytes)
                source, first = OneBuffer(bytes_of(array)), low // a_chunk
                yield Answer(number, self.spec.bucket, version, first, bounds, source, None, self.spec.priority)

    def is_one_piece(self, wait: PullWait) -> bool:
        if wait.ids is None:
            return True
        arrays = len(self.spec.state) if wait.state else 1
        return len(wait.ids) * arrays <= self._table.a_piece and not self._table.is_long(wait.ids)

    def lacks(self, wait: PullWait) -> bool:
        return wait.ids is not None and self.lacks_rows(wait.ids)

    def lacks_rows(self, places: Array) -> bool:
        """Whether some of these rows are to be set, and never were."""
        return self.spec.given and not self._table.rows.has_all(places)

    def reading(self, places: Array, name: str | None) -> Generator[None, None, Array]:
        """Rows (n, width) as they are now, or their state of that name; stops after each piece."""
        return self._table.reading(name, places, of=len(places), version=self.version)

    def _lacks_for(self, total: Rows | None) -> bool:
        if not self.spec.given or total is None:
            return False
        return not all(self._table.rows.has_all(ids) for ids, _ in total.parts)

    def _fill(self, value: Rows) -> None:
        self._table.fill(value, self._moment(self.version))

    def _put(self, value: Rows) -> None:
        self._table.put(value, self._moment(self.version))

    def _apply(self, complete: Complete[Rows]) -> Iterator[None]:
        return self._table.apply(complete, self._moment(complete.step), self.updates + 1)

    def _moment(self, step: int) -> int:
        """What a row's age is told by: the step, or in async, where each slot has its own, the updates so far."""
        return step if self.spec.mode is Mode.SYNC else self.updates

    def close(self) -> None:
        """Gives back what lies on disk."""
        self._table.rows.close()


def _values_of(total: Rows) -> Array:
    """All values of a sum in one array, to be written."""
    return total.values


def _nothing_ahead(cut: RowCut, shard: int, a_piece: int) -> Callable[[], SetsAhead[Rows]]:
    """Where rows of one version wait."""
    if cut.growth is not None:
        return partial(IdsAhead, cut.width, cut.dtype, a_piece=a_piece)
    return partial(RowsAhead, cut.rows_on(shard), cut.width, cut.dtype, a_piece=a_piece)
