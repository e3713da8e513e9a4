"""A table's rows on one shard: they come into being when they are first pushed or set. Pure.

A row that was never touched takes no memory: a pull of it computes its first value. Rows are named by their place on
the shard, ascending; of a growing table that is the id. The rule runs on the touched rows alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator, Hashable, Iterator, Sequence

import numpy as np

from weft_kernels.rules.replay import WORK_ELEMENTS
from weft_kvstore.arrays.array import Array
from weft_kvstore.arrays.buffers import bytes_of
from weft_kvstore.description.records import Mode, Sparse
from weft_kvstore.merging.answer import Answer
from weft_kvstore.merging.pull_wait import PullWait
from weft_kvstore.merging.steps import Complete
from weft_kvstore.merging.work import PIECE_ELEMENTS
from weft_kvstore.sharding.row_cut import RowCut, chunks_of
from weft_kvstore.tables.admission import Draw
from weft_kvstore.tables.growing_rows import GrowingRows
from weft_kvstore.tables.held_rows import FixedRows, HeldRows
from weft_kvstore.tables.place import TablePlace
from weft_kvstore.tables.row_history import RowHistory
from weft_kvstore.tables.row_sums import merged
from weft_kvstore.tables.rows import Rows
from weft_kvstore.units.first_made import KEPT_BYTES, FirstMade, MakeRows
from weft_kvstore.units.row_pushes import ChunkRun, RowPushes
from weft_kvstore.units.sets_ahead import IdsAhead, RowsAhead, SetsAhead
from weft_kvstore.units.unit_state import KeyRules, UnitState
from weft_kvstore.wire.out_run import OneBuffer


class TableState(UnitState[Rows, Rows]):
    """The rows of a table on a shard; `tables.held_rows` says where they are and what they hold."""

    __slots__ = ("_first", "_history", "_pushes", "_rows", "_waiting_bytes", "cut", "dropped", "shard")

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
        super().__init__(spec, 0, merged)
        self.cut = cut
        self.shard = shard
        self.dropped = 0
        """Rows of gradients that were dropped, for their ids were not admitted."""
        self._first = FirstMade(first) if cut.growth is None else first
        self._pushes = RowPushes(cut.rows_up)
        self._waiting_bytes = 0
        start = {name: spec.rule.state[name] for name in spec.state}
        rows = cut.rows_on(shard) if cut.growth is None else None
        self._history = RowHistory(spec.rule, cut.dtype, rows) if sparse is Sparse.STANDARD and spec.slots else None
        self._rows: HeldRows
        if cut.growth is None:
            self._rows = FixedRows(cut.rows_on(shard), cut.width, cut.dtype, start, place, history=self._history)
        else:
            salt = secrets.randbits(64) if salt is None else salt
            self._rows = GrowingRows(
                cut.width, cut.dtype, start, cut.growth, salt=salt, draw=draw, place=place, history=self._history
            )

    @property
    def nbytes(self) -> int:
        return self._waiting_bytes

    @property
    def capacity_bytes(self) -> int:
        """Bytes of the values, were every row touched; of a growing table, of those that one call may name."""
        return self.cut.bytes_on(self.shard)

    @property
    def bytes_of_a_row(self) -> int:
        """Of its value and the rule's state."""
        return self.cut.row_bytes * (1 + len(self.spec.state))

    @property
    def ahead_bytes(self) -> int:
        """Bytes of rows that were set for versions to come."""
        return sum(one.nbytes for one in list(self._sets.values()))

    @property
    def touched(self) -> int:
        """How many rows have come into being, and have not gone."""
        return self._rows.count

    @property
    def held(self) -> HeldRows:
        return self._rows

    def named(self, slot: int) -> str:
        return f"slot {slot}, key {self.spec.key!r}"

    def check(self, slot: int, step: int, *, pushes: bool) -> None:
        super().check(slot, step, pushes=pushes)
        if not pushes:
            self._pushes.check_nothing(slot, step, self.where(slot, step))

    def accept_run(self, slot: int, step: int, run: ChunkRun, chunks: int) -> bool:
        """Takes in a run of a push of so many chunks, as `accept` does: the slot is in when all its chunks are. Raises
        PushRefusedError where it contradicts what is there, or itself."""
        self.check(slot, step, pushes=True)
        new = self._pushes.fitting(slot, step, run, chunks, self.where(slot, step))
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
        return super().merging()

    @property
    def _parts_begun(self) -> int:
        return self._pushes.begun

    def replace(self, slot: int) -> None:
        super().replace(slot)
        self._pushes.drop(slot)

    def answers(self, wait: PullWait) -> Iterator[Answer | None]:
        places = np.zeros(0, self.cut.id_dtype) if wait.ids is None else wait.ids
        a_chunk = self.cut.rows_down
        together = max(self._a_piece // a_chunk, 1) * a_chunk
        version = self.answered_version(wait)
        for number, name in enumerate(self.spec.state if wait.state else (None,)):
            for low in range(0, max(len(places), 1), together):
                some = places[low : low + together]
                if len(some) <= self._a_piece:
                    array = yield from self._reading(name, some, of=len(places))
                    yield None
                else:
                    array = np.empty((len(some), self.cut.width), self.cut.dtype)
                    for begin in range(0, len(some), self._a_piece):
                        piece = slice(begin, begin + self._a_piece)
                        array[piece] = yield from self._reading(name, some[piece], of=len(places))
                        yield None
                chunks = np.arange(chunks_of(len(some), a_chunk) + 1)
                bounds = np.minimum(chunks * a_chunk * self.cut.row_bytes, array.nbytes)
                source, first = OneBuffer(bytes_of(array)), low // a_chunk
                yield Answer(number, self.spec.lot, version, first, bounds, source, None, self.spec.priority)

    def is_one_piece(self, wait: PullWait) -> bool:
        arrays, history = len(self.spec.state) if wait.state else 1, self._history
        if wait.ids is None:
            return True
        if history is not None and history.work_of(self._rows.find(wait.ids), self.cut.width) > WORK_ELEMENTS:
            return False
        return len(wait.ids) * arrays <= self._a_piece

    @property
    def _a_piece(self) -> int:
        """Rows that are made or read at once."""
        return max(PIECE_ELEMENTS // max(self.cut.width, 1), 1)

    def values(self, places: Array) -> Array:
        """Rows (n, width) as they are now, or as they would begin; a new array."""
        return finished(self._reading(None, places, of=len(places)))

    def _reading(self, name: str | None, places: Array, *, of: int) -> Generator[None, None, Array]:
        """The value of some rows of a pull of so many, or their state of that name (n, width); stops after each piece.
        A push of what was pulled may follow. Raises RuleFailedError."""
        keep = of * self.cut.row_bytes <= KEPT_BYTES
        if self._history is not None:
            with self._rule_runs(self.version):
                return (yield from self._replayed(self._history, name, places, keep=keep))
        if name is not None:
            return self._rows.state(name, places, self.spec.rule.state[name])
        found, lacks = self._rows.values(places)
        if not self.spec.given and lacks.any():
            found[lacks] = self._made(places[lacks], keep=keep)
        return found

    def _replayed(
        self, history: RowHistory, name: str | None, places: Array, *, keep: bool
    ) -> Generator[None, None, Array]:
        """The same of rows that updates passed by: those that are here are brought up to date for good."""
        arrays, numbers = self._rows.arrays, self._rows.find(places)
        lacks = numbers < 0
        yield from history.catching_up(arrays, numbers[~lacks])
        found = np.empty((len(places), self.cut.width), self.cut.dtype)
        if not lacks.all():
            there = numbers[~lacks]
            found[~lacks] = arrays.values(there) if name is None else arrays.state(name, there)
        if lacks.any() and not self.spec.given:
            first = self._made(places[lacks], keep=keep).copy()  # What was made is kept as it was.
            state = yield from history.aging(first)
            found[lacks] = first if name is None else state[name]
        return found

    def lacks(self, wait: PullWait) -> bool:
        return self.spec.given and wait.ids is not None and not self._rows.has_all(wait.ids)

    def _lacks_for(self, total: Rows | None) -> bool:
        if not self.spec.given or total is None:
            return False
        return not all(self._rows.has_all(ids) for ids, _ in total.parts)

    def _gradient_elements(self, total: Rows) -> Array:
        return total.values

    @property
    def _fills(self) -> bool:
        return self.spec.given

    def _fill(self, value: Rows) -> None:
        new = self._rows.find(value.ids) < 0
        rows = self._rows.bring(value.ids[new], self._moment(self.version), None)
        self._rows.arrays.put(rows, value.values[new])

    def _nothing_ahead(self) -> SetsAhead[Rows]:
        if self.cut.growth is not None:
            return IdsAhead(self.cut.width, self.cut.dtype, a_piece=self._a_piece)
        return RowsAhead(self.cut.rows_on(self.shard), self.cut.width, self.cut.dtype, a_piece=self._a_piece)

    def _put(self, value: Rows) -> None:
        arrays, history, moment = self._rows.arrays, self._history, self._moment(self.version)
        if history is None:
            arrays.put(self._rows.bring(value.ids, moment, None), value.values)
            return
        # Their state has seen the updates that passed them by: all but that of rows that were never set before.
        known = self._rows.find(value.ids) >= 0 if self.spec.given else np.ones(len(value.ids), np.bool_)
        rows = self._rows.bring(value.ids, moment, None if self.spec.given else self._made)
        if self.spec.state:
            for _ in history.catching_up(arrays, rows[known]):
                pass
        arrays.put(rows, value.values)
        history.saw_all(rows)

    def _moment(self, step: int) -> int:
        """What a row's age is told by: the step, or in async, where each slot has its own, the updates so far."""
        return step if self.spec.mode is Mode.SYNC else self.updates

    def _apply(self, complete: Complete[Rows]) -> Iterator[None]:
        if complete.total is None:
            return
        rows, step, moment = complete.total, complete.step, self._moment(complete.step)
        piece = min(max(self.spec.a_piece // max(self.cut.width, 1), 1), self._a_piece)
        behind: list[tuple[Array, Array]] = []
        for ids, given in rows.pieces(piece):
            numbers, gradient = self._touched(ids, given, moment)
            if self._history is None:
                self._update(numbers, gradient, step)
            else:
                with self._rule_runs(step):
                    yield from self._history.catching_up(self._rows.arrays, numbers)
                behind.append((numbers, gradient))
            if len(rows) > piece:
                yield
        if self._history is not None:
            yield from self._updating(self._history, behind, step)
        yield from self._rows.boundary(moment + 1)

    def _touched(self, ids: Array, gradient: Array, moment: int) -> tuple[Array, Array]:
        """The numbers of rows that a gradient is for, which come into being, and their part of it."""
        admitted = self._rows.admitted(ids, moment)
        if admitted is not None and not admitted.all():
            self.dropped += len(ids) - int(np.count_nonzero(admitted))
            ids, gradient = ids[admitted], gradient[admitted]
        return self._rows.bring(ids, moment, None if self.spec.given else self._made), gradient

    def _update(self, numbers: Array, gradient: Array, step: int) -> None:
        with self._rule_runs(step):
            hyper = self.spec.hyper.at(step)
            self._rows.apply(self.spec.rule, numbers, gradient, step=self.updates + 1, hyper=hyper)

    def _updating(self, history: RowHistory, parts: Sequence[tuple[Array, Array]], step: int) -> Iterator[None]:
        """Updates rows that have seen all that was before, and brings some of the others closer."""
        with self._rule_runs(step):
            history.append(self.spec.hyper.at(step))
        for numbers, gradient in parts:
            self._update(numbers, gradient, step)
            history.saw_all(numbers)
            if len(parts) > 1:
                yield
        with self._rule_runs(step):
            yield from history.sweeping(self._rows.arrays, self._rows.stop)

    def _made(self, places: Array, *, keep: bool = False) -> Array:
        """First values of rows that are not here (n, width)."""
        ids = self.cut.ids_at(self.shard, places)
        if not isinstance(self._first, FirstMade):
            return self._first(ids)
        return self._first.shown(ids) if keep else self._first.taken(ids)

    def close(self) -> None:
        """Gives back what lies on disk."""
        self._rows.close()


def finished(steps: Generator[None, None, Array]) -> Array:
    """What work gives in the end, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
