"""The rows of a table that a shard has: found, created, read, captured and restored; which ids of a growing table get a
row, and which rows go again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from weft_kvstore.arrays import Array
from weft_kvstore.description.records import GrowthDescription
from weft_kvstore.rows.growing_array import NEARLY_ALL, GrowingArray, TablePlace
from weft_kvstore.rows.index import IdIndex
from weft_kvstore.rows.row_arrays import Columns, RowArrays, RowCapture, RowChanges, RowHistory
from weft_kvstore.snapshot_files import ROWS, VALUE

COUNTED_IDS: Final = "counted/ids"
COUNTS: Final = "counted/uses"
LAST: Final = "counted/last"
"""Names in a snapshot: ids that are counted and have no row, how often each was used, and when last."""

USED: Final = "row/used"
SCORE: Final = "row/score"
SEEN: Final = "row/seen"
BOUNDS: Final = "table/bounds"
"""Names in a snapshot: when a row was last used, its score, which updates it has seen; at which boundary rows were last
evicted."""

CHANCE: Final = "admission"
"""Names the draws by which ids are admitted with a probability."""

SWEPT_AT_ONCE: Final = 1 << 18
"""So many rows are looked at before the shard looks at its socket again."""

CREATED_ELEMENTS: Final = 1 << 17
"""So many elements of first values are made at once, and written while they are in the cache."""

Draw = Callable[[Array, int], Array]
"""draw(ids, step): a number of each id (n) uint64 in [0, 1), float64 (n)."""

FirstOf = Callable[[Array], Array]
"""first(indices): the first values (n, width) of rows by their indices (n)."""


class RowStorage:
    """Rows have numbers, by which `arrays` are read; -1 stands for a row that is not here. Callers name indices: of a
    table of fixed size an index is the row's number, of a growing one it is the id, uint64.

    `_here` (bool) are the rows that are here, `count` of them. Of a growing table `_last` has the step of a row's last
    use, and `_score` the sum over its uses of decay^(steps since then), at that step. `_columns` are what is known of
    each row beside `arrays`, by the names that a snapshot has for it.
    """

    def __init__(
        self,
        width: int,
        dtype: np.dtype[Any],
        start: Mapping[str, float],
        *,
        rows: int | None = None,
        growth: GrowthDescription | None = None,
        salt: int = 0,
        draw: Draw | None = None,
        place: TablePlace | None = None,
        history: RowHistory | None = None,
    ) -> None:
        """`rows`: how many a table of fixed size has; else there is `growth`, `salt` is of `IdIndex`, and `draw` makes
        the numbers that admit by probability. `history`: which updates rows have seen, where semantics are the standard
        ones. Raises MemoryError, and OSError where no file can be made at the place."""
        self.arrays = RowArrays(width, dtype, start, capacity=rows, place=place)
        self._to_huge_pages = self.arrays.to_huge_pages()
        self.history = history
        self.changes = RowChanges()
        """Since captures before."""
        self.count = 0
        self.is_full = False
        """Whether all rows of a table of fixed size are here, so that indices are the rows' numbers, and nothing has to
        be looked at before they are read or updated."""
        self._captures: list[RowCapture] = []
        self._here = GrowingArray(None, np.bool_, rows=rows)
        self._index = None if growth is None else IdIndex(salt)
        self._draw = draw
        self._growth = growth or GrowthDescription()
        self._eviction = self._growth.eviction
        self.evicts = self._eviction is not None
        self.admits_all = self._growth.uses <= 1 and self._growth.probability >= 1
        self._counted: RowStorage | None = None
        """Where ids are admitted by their uses: how often those were used that have no row. What is counted is evicted
        by age as rows are, so that it is bounded too."""
        if self._growth.uses > 1:
            by_age = self._eviction and (
                replace(self._eviction, score=None) if self._eviction.age is not None else None
            )
            counts = GrowthDescription(eviction=by_age)
            self._counted = RowStorage(1, np.dtype(np.uint32), {}, growth=counts, salt=salt)
        self._last = GrowingArray(None, np.int64)
        self._score = GrowingArray(None, np.float32)
        self._bounds = 0
        self._columns = {} if history is None else {SEEN: history.seen}
        if self._eviction is not None:
            self._columns[USED] = self._last
            if self._eviction.score is not None:
                self._columns[SCORE] = self._score

    @property
    def stop(self) -> int:
        """A number above those of all rows that are here."""
        return len(self._here) if self._index is None else self._index.stop

    def find(self, indices: Array) -> Array:
        """The numbers (n) int64 of rows of indices (n)."""
        if self._index is not None:
            return self._index.find(indices)
        return indices if self.count == len(self._here) else np.where(self._here.array[indices], indices, -1)

    def read(self, name: str | None, indices: Array) -> tuple[Array, Array | None]:
        """One array (see `RowArrays`) at indices (n): a copy (n, width), and which of these rows (n) bool are not here,
        whose part of the copy is undefined; None where all are."""
        rows = self.find(indices)
        lacks = rows < 0
        if not lacks.any():
            return self.arrays.read(name, rows), None
        if not len(self.arrays):
            return np.empty((len(indices), self.arrays.width), self.arrays.dtype), lacks
        return self.arrays.read(name, np.maximum(rows, 0)), lacks

    def find_or_add(self, indices: Array, step: int, first: FirstOf | None) -> Array:
        """The numbers (n) int64 of rows of indices (n), distinct, that are used in a step: those that were not here are
        created, with their first values where there are any. Raises MemoryError."""
        rows, new = indices, np.zeros(0, np.int64)
        if self._index is not None:
            self._reserve(self._index.stop + len(indices))
            rows, new = self._index.find_or_add(indices)
            if self._eviction is not None:
                self._use(rows, new, step)
        elif self.count < len(self._here):
            new = np.flatnonzero(~self._here.array[indices])
        if len(new):
            self._create(rows[new], indices[new], first)
        if self._index is None and self.count >= NEARLY_ALL * len(self._here):
            for _ in self._to_huge_pages:  # Some in each call, until all are: then nothing is to be done any more.
                return rows
            self.is_full = self.history is None and self.count == len(self._here)
        return rows

    def admitted(self, indices: Array, step: int) -> Array:
        """Which of the indices (n), distinct, that are pushed in a step have a row, or get one by it (n) bool, where
        not all are admitted. Each step asks once for each index."""
        found = self.find(indices) >= 0
        new = np.flatnonzero(~found)
        if self._counted is not None:
            found[new] = self._counted.count_uses(indices[new], step) >= self._growth.uses
            self._counted.remove(indices[new][found[new]])
        else:
            assert self._draw is not None
            found[new] = self._draw(indices[new], step) < self._growth.probability
        return found

    def boundary(self, step: int) -> Generator[None, None, None]:
        """The boundary before `step`: rows that are old, or little used, go; stops after each piece. Looked for once in
        `every` steps: at the first step with rows from such a boundary on."""
        eviction, index = self._eviction, self._index
        if eviction is None or index is None or step // eviction.every <= self._bounds:
            return
        self._bounds = step // eviction.every
        for low in range(0, index.stop, SWEPT_AT_ONCE):
            rows = low + np.flatnonzero(self._here.array[low : min(low + SWEPT_AT_ONCE, index.stop)])
            goes = np.zeros(len(rows), np.bool_)
            if eviction.age is not None:
                goes |= step - self._last.array[rows] > eviction.age
            if eviction.score is not None:
                goes |= self._faded(rows, step) < np.float32(eviction.score)
            self._remove(rows[goes])
            yield
            yield from index.tidy()
        if self._counted is not None:
            yield from self._counted.boundary(step)

    def count_uses(self, indices: Array, step: int) -> Array:
        """Adds 1 to the value of rows of one element, which begin at 0: what they are then (n)."""
        rows = self.find_or_add(indices, step, lambda new: np.zeros((len(new), 1), self.arrays.dtype))
        counts = self.arrays.read(None, rows) + self.arrays.dtype.type(1)
        self.arrays.write(None, rows, counts)
        found: Array = counts[:, 0]
        return found

    def remove(self, indices: Array) -> None:
        """Rows of a growing table of indices (n), distinct, go, where they are here."""
        rows = self.find(indices)
        self._remove(rows[rows >= 0])
        if self._index is not None:
            for _ in self._index.tidy():
                pass

    def columns(self, rows: Array) -> Columns:
        """All that is known of rows (n) that are here, but for their indices: for `restore`."""
        found = {name or VALUE: self.arrays.read(name, rows) for name in self.arrays.names}
        return found | {name: one.array.take(rows) for name, one in self._columns.items()}

    def restore(self, indices: Array, columns: Columns) -> None:
        """Rows of indices (n), distinct, are as `columns` has them. Raises MemoryError."""
        rows = self.find_or_add(indices, 0, None)
        for name in self.arrays.names:
            self.arrays.write(name, rows, columns[name or VALUE])
        for column, one in self._columns.items():
            one.array[rows] = columns[column]

    def marks(self) -> Columns:
        """What is known beside the columns of rows: copies, for `begin_with`."""
        found = {} if self.history is None else self.history.marks()
        if self._index is not None:
            found[BOUNDS] = np.array([self._bounds])
        if self._counted is not None:
            rows = np.flatnonzero(self._counted._here.array[: self._counted.stop])
            counts = self._counted.columns(rows)
            found[COUNTED_IDS] = self._counted._indices(rows).view(np.int64)
            found[COUNTS] = counts[VALUE][:, 0].astype(np.int64)
            found[LAST] = counts.get(USED, np.zeros(len(rows), np.int64))
        return found

    def begin_with(self, marks: Sequence[Columns], is_here: Callable[[Array], Array]) -> None:
        """Continues from the marks of shards that had parts of the same rows; to be called before any row is here.
        `is_here(indices)` (n) bool says which rows belong here."""
        if self.history is not None:
            self.history.begin_with(marks)
        if self._index is not None:
            self._bounds = max(int(one[BOUNDS][0]) for one in marks)
        if self._counted is not None and COUNTED_IDS in marks[0]:
            ids, counts, last = [np.concatenate([one[name] for one in marks]) for name in (COUNTED_IDS, COUNTS, LAST)]
            ids = ids.view(np.uint64)
            mine = is_here(ids)
            self._counted.restore(ids[mine], {VALUE: counts[mine].astype(np.uint32)[:, None], USED: last[mine]})

    def capture(self, step: int, since: int | None = None) -> tuple[RowCapture, Array]:
        """All rows that are here now, or those that have changed since a capture at a step that `changes` knows; and
        the indices of those that have gone since then. `release` ends what it costs, but for the next one's `since`."""
        rows, gone = self.changes.captured(step, since, self._here.array[: self.stop])
        found = RowCapture(rows, lambda rows: {ROWS: self._indices(rows)} | self.columns(rows))
        self._captures.append(found)
        self.arrays.written = self._written
        return found, gone

    def release(self, capture: RowCapture) -> None:
        """Nothing is taken out of it any more."""
        if capture in self._captures:
            self._captures.remove(capture)

    def close(self) -> None:
        """Frees what is on disk."""
        self.arrays.close()

    def _indices(self, rows: Array) -> Array:
        return rows if self._index is None else self._index.ids.array.take(rows)

    def _written(self, rows: Array) -> None:
        """These rows are about to change."""
        for one in self._captures:
            one.keep(rows)
        self.changes.mark(rows)

    def _reserve(self, rows: int) -> None:
        self.arrays.reserve(rows)
        for one in (self._here, *self._columns.values()):
            one.reserve(rows)

    def _create(self, rows: Array, indices: Array, first: FirstOf | None) -> None:
        at_once = min(max(CREATED_ELEMENTS // max(self.arrays.width, 1), 1), self.arrays.at_once or len(rows))
        for low in range(0, len(rows), at_once):
            some = rows[low : low + at_once]
            if first is not None:
                self.arrays.write(None, some, first(indices[low : low + at_once]))
            self.arrays.begin_state(some, are_zeros=self._index is None)
        self._here.array[rows] = True
        self.count += len(rows)
        if self.history is not None:
            self.history.begin(rows)

    def _remove(self, rows: Array) -> None:
        assert self._index is not None
        if self.arrays.written is not None:
            self._written(rows)
        self.changes.gone(self._indices(rows))
        self._here.array[rows] = False
        self.count -= len(rows)
        self._index.remove(rows)
        if self.history is not None:
            self.history.seen.array[rows] = 0

    def _use(self, rows: Array, new: Array, step: int) -> None:
        """Rows (n), distinct, are used in a step, those at the positions `new` for the first time."""
        assert self._eviction is not None
        if self.arrays.written is not None:
            self._written(rows[self._here.array[rows]])
        if self._eviction.score is not None:
            score = self._faded(rows, step) + np.float32(1)
            score[new] = 1
            self._score.array[rows] = score
        self._last.array[rows] = step

    def _faded(self, rows: Array, step: int) -> Array:
        """Scores (n) float32 as they are at a step. By repeated squares: multiplications are the same everywhere,
        powers are not."""
        assert self._eviction is not None
        score = self._score.array[rows]
        left = np.maximum(step - self._last.array[rows], 0)  # A row that is restored is used at step 0.
        factor = np.float32(self._eviction.decay)
        while left.any():
            np.multiply(score, factor, out=score, where=(left & 1).astype(np.bool_))
            left >>= 1
            factor *= factor
        return score
