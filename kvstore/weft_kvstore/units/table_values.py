"""The rows of a table on a shard by what they are worth: what is here, or what would begin; read, set, updated. Pure.

A row that was never touched takes no memory: its first value is computed when it is read. The rule runs on the touched
rows alone; with standard semantics the others get what they have missed when they are next met.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterator, Sequence

import numpy as np

from weft_kernels.rules.replay import WORK_ELEMENTS
from weft_kvstore.arrays.array import Array
from weft_kvstore.description.records import Sparse
from weft_kvstore.merging.steps import Complete
from weft_kvstore.sharding.row_cut import RowCut
from weft_kvstore.tables.admission import Draw
from weft_kvstore.tables.fixed_rows import FixedRows
from weft_kvstore.tables.growing_rows import GrowingRows
from weft_kvstore.tables.held_rows import HeldRows
from weft_kvstore.tables.place import TablePlace
from weft_kvstore.tables.row_history import RowHistory
from weft_kvstore.tables.rows import Rows
from weft_kvstore.units.first_made import KEPT_BYTES, FirstMade, MakeRows
from weft_kvstore.units.key_rules import KeyRules


class TableValues:
    """`rows` says where rows are and what they hold; `dropped` counts rows of gradients that were dropped, for their
    ids were not admitted. A `moment` is what a row's age is told by."""

    __slots__ = ("_cut", "_first", "_history", "_shard", "_spec", "a_piece", "dropped", "rows")

    def __init__(
        self,
        spec: KeyRules,
        cut: RowCut,
        shard: int,
        first: MakeRows,
        *,
        a_piece: int,
        sparse: Sparse = Sparse.LAZY,
        draw: Draw | None = None,
        place: TablePlace | None = None,
        salt: int | None = None,
    ) -> None:
        """`a_piece`: rows that are read at once; the others are of `TableState`, and so is what is raised."""
        self._spec = spec
        self._cut = cut
        self._shard = shard
        self.a_piece = a_piece
        self.dropped = 0
        self._first = FirstMade(first) if cut.growth is None else first
        start = {name: spec.rule.state[name] for name in spec.state}
        count = cut.rows_on(shard) if cut.growth is None else None
        self._history = RowHistory(spec.rule, cut.dtype, count) if sparse is Sparse.STANDARD and spec.slots else None
        self.rows: HeldRows
        if cut.growth is None:
            self.rows = FixedRows(cut.rows_on(shard), cut.width, cut.dtype, start, place, history=self._history)
        else:
            salt = secrets.randbits(64) if salt is None else salt
            self.rows = GrowingRows(
                cut.width, cut.dtype, start, cut.growth, salt=salt, draw=draw, place=place, history=self._history
            )

    def is_long(self, places: Array) -> bool:
        """Whether reading these rows takes more than a piece of work, for they have missed too many updates."""
        history = self._history
        return history is not None and history.work_of(self.rows.find(places), self._cut.width) > WORK_ELEMENTS

    def reading(self, name: str | None, places: Array, *, of: int, version: int) -> Generator[None, None, Array]:
        """The value of some rows of a pull of so many, or their state of that name (n, width); stops after each piece.
        A push of what was pulled may follow. Raises RuleFailedError."""
        keep = of * self._cut.row_bytes <= KEPT_BYTES
        if self._history is not None:
            with self._spec.rule_runs(version):
                return (yield from self._replayed(self._history, name, places, keep=keep))
        if name is not None:
            return self.rows.state(name, places, self._spec.rule.state[name])
        found, lacks = self.rows.values(places)
        if not self._spec.given and lacks.any():
            found[lacks] = self._made(places[lacks], keep=keep)
        return found

    def _replayed(
        self, history: RowHistory, name: str | None, places: Array, *, keep: bool
    ) -> Generator[None, None, Array]:
        """The same of rows that updates passed by: those that are here are brought up to date for good."""
        arrays, numbers = self.rows.arrays, self.rows.find(places)
        lacks = numbers < 0
        yield from history.catching_up(arrays, numbers[~lacks])
        found = np.empty((len(places), self._cut.width), self._cut.dtype)
        if not lacks.all():
            there = numbers[~lacks]
            found[~lacks] = arrays.values(there) if name is None else arrays.state(name, there)
        if lacks.any() and not self._spec.given:
            first = self._made(places[lacks], keep=keep).copy()  # What was made is kept as it was.
            state = yield from history.aging(first)
            found[lacks] = first if name is None else state[name]
        return found

    def fill(self, value: Rows, moment: int) -> None:
        """Sets what of these rows is not here."""
        new = self.rows.find(value.ids) < 0
        numbers = self.rows.bring(value.ids[new], moment, None)
        self.rows.arrays.put(numbers, value.values[new])

    def put(self, value: Rows, moment: int) -> None:
        """Sets rows."""
        arrays, history = self.rows.arrays, self._history
        if history is None:
            arrays.put(self.rows.bring(value.ids, moment, None), value.values)
            return
        # Their state has seen the updates that passed them by: all but that of rows that were never set before.
        given = self._spec.given
        known = self.rows.find(value.ids) >= 0 if given else np.ones(len(value.ids), np.bool_)
        numbers = self.rows.bring(value.ids, moment, None if given else self._made)
        if self._spec.state:
            for _ in history.catching_up(arrays, numbers[known]):
                pass
        arrays.put(numbers, value.values)
        history.saw_all(numbers)

    def apply(self, complete: Complete[Rows], moment: int, update: int) -> Iterator[None]:
        """Makes the table's update of that number, the first is 1; stops after each piece. Raises RuleFailedError,
        MemoryError."""
        if complete.total is None:
            return
        rows, step = complete.total, complete.step
        piece = min(max(self._spec.a_piece // max(self._cut.width, 1), 1), self.a_piece)
        behind: list[tuple[Array, Array]] = []
        for ids, given in rows.pieces(piece):
            numbers, gradient = self._touched(ids, given, moment)
            if self._history is None:
                self._update(numbers, gradient, step, update)
            else:
                with self._spec.rule_runs(step):
                    yield from self._history.catching_up(self.rows.arrays, numbers)
                behind.append((numbers, gradient))
            if len(rows) > piece:
                yield
        if self._history is not None:
            yield from self._updating(self._history, behind, step, update, moment)
        yield from self.rows.boundary(moment + 1)

    def _touched(self, ids: Array, gradient: Array, moment: int) -> tuple[Array, Array]:
        """The numbers of rows that a gradient is for, which come into being, and their part of it."""
        admitted = self.rows.admitted(ids, moment)
        if admitted is not None and not admitted.all():
            self.dropped += len(ids) - int(np.count_nonzero(admitted))
            ids, gradient = ids[admitted], gradient[admitted]
        return self.rows.bring(ids, moment, None if self._spec.given else self._made), gradient

    def _update(self, numbers: Array, gradient: Array, step: int, update: int) -> None:
        with self._spec.rule_runs(step):
            hyper = self._spec.hyper.at(step)
            self.rows.apply(self._spec.rule, numbers, gradient, step=update, hyper=hyper)

    def _updating(
        self, history: RowHistory, parts: Sequence[tuple[Array, Array]], step: int, update: int, moment: int
    ) -> Iterator[None]:
        """Updates rows that have seen all that was before, and brings some of the others closer."""
        with self._spec.rule_runs(step):
            history.append(self._spec.hyper.at(step))
        for numbers, gradient in parts:
            self._update(numbers, gradient, step, update)
            history.saw_all(numbers)
            if len(parts) > 1:
                yield
        # A row of a growing table that is not here has no past, and one that is to be given has no value.
        comes = self._cut.growth is None and not self._spec.given
        bring = (lambda rows: self.rows.bring(rows, moment, self._made)) if comes else None
        with self._spec.rule_runs(step):
            yield from history.sweeping(self.rows.arrays, self.rows.stop, bring)

    def _made(self, places: Array, *, keep: bool = False) -> Array:
        """First values of rows that are not here (n, width)."""
        ids = self._cut.ids_at(self._shard, places)
        if not isinstance(self._first, FirstMade):
            return self._first(ids)
        return self._first.shown(ids) if keep else self._first.taken(ids)
