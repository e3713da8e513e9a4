"""The rows of a table that a shard holds: all of them laid out, or those that came into being; which ids come into a
growing table, and which rows go again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from weft_kvstore.arrays import Array, zeros_on_demand
from weft_kvstore.description.records import EvictionDescription, GrowthDescription
from weft_kvstore.rows.arrays import Columns, RowArrays, RowCapture, RowChanges, RowHistory
from weft_kvstore.rows.index import IdIndex
from weft_kvstore.rows.memory import GrowingArray, HugeBlocks, TablePlace
from weft_kvstore.rows.rows import RowNumbers
from weft_kvstore.snapshot_files import ROWS, VALUE

# ----------------------------------------------------------------------------------------------------------------------
# Which ids come into a growing table: decided for the ids of one step, from counters and numbers that belong to table,
# id and step.


COUNTED: Final = "counted/ids"
COUNTS: Final = "counted/uses"
LAST: Final = "counted/last"
"""Names in a snapshot: ids that are counted and not in, how often each was used, and when last."""

CHANCE: Final = "admission"
"""What the numbers that admit by probability are drawn for."""

SWEPT_AT_ONCE: Final = 1 << 18
"""Rows that are looked at between two looks at the socket."""

Draw = Callable[[Array, int], Array]
"""draw(ids, step): a number of each id (n) uint64 in [0, 1), float64 (n)."""


class AdmitByChance:
    """Each use admits with one probability. Needs no memory."""

    def __init__(self, probability: float, draw: Draw) -> None:
        self._probability = probability
        self._draw = draw

    def admitted(self, ids: Array, step: int) -> Array:
        """Which of the ids (n) uint64, distinct, none of which is in the table, come in with this use of theirs (n)
        bool. Each step is asked once for each id."""
        found: Array = self._draw(ids, step) < self._probability
        return found


class AdmitByUses:
    """The use number `uses` admits. Counts the uses of each id that is not in; where rows of an age are evicted, an id
    whose last use is as long ago begins to count anew, so that what is counted is bounded too."""

    def __init__(self, uses: int, salt: int) -> None:
        self._uses = uses
        self._index = IdIndex(salt)
        self._numbers = RowNumbers()
        self._counts = GrowingArray(None, np.uint32)
        self._last = GrowingArray(None, np.int64)

    def admitted(self, ids: Array, step: int) -> Array:
        """As by chance. Raises MemoryError."""
        places = self._index.find(ids)
        new = np.flatnonzero(places < 0)
        places[new], _ = self._numbers.take(len(new))
        for array in (self._counts, self._last):
            if self._numbers.stop > len(array):
                array.grow(max(self._numbers.stop, len(array) * 3 // 2))
        self._index.add(ids[new], places[new])
        self._counts.array[places[new]] = 0
        self._counts.array[places] += 1
        self._last.array[places] = step
        found: Array = self._counts.array[places] >= self._uses
        self._drop(places[found])
        for _ in self._index.tidy():
            pass
        return found

    def forget(self, step: int, age: int | None) -> Iterator[None]:
        """Forgets ids that were last used over `age` steps ago; None: none. Stops after each piece."""
        if age is None:
            return
        for low in range(0, self._numbers.stop, SWEPT_AT_ONCE):
            high = min(low + SWEPT_AT_ONCE, self._numbers.stop)
            last = self._last.array[low:high]
            self._drop(low + np.flatnonzero((last >= 0) & (step - last > age)))
            yield
            yield from self._index.tidy()

    def counts(self) -> Columns:
        """What is known of ids that are not in: copies, for `restore`."""
        places = np.flatnonzero(self._last.array[: self._numbers.stop] >= 0)
        ids = self._index.ids.array[places].view(np.int64)
        return {COUNTED: ids, COUNTS: self._counts.array[places].astype(np.int64), LAST: self._last.array[places]}

    def restore(self, counts: Columns) -> None:
        """Goes on where others were; before anything is asked."""
        ids = counts[COUNTED].view(np.uint64)
        places, _ = self._numbers.take(len(ids))
        for array in (self._counts, self._last):
            array.grow(self._numbers.stop)
        self._index.add(ids, places)
        self._counts.array[places] = counts[COUNTS]
        self._last.array[places] = counts[LAST]

    def _drop(self, places: Array) -> None:
        self._index.remove(self._index.ids.array[places])
        self._last.array[places] = -1
        self._numbers.give_back(places)


# --- Which rows of a growing table go: decided at the boundary of a step from when and how often they were used -------


USED: Final = "row/used"
SCORE: Final = "row/score"
"""Names in a snapshot."""


class Eviction:
    """When rows were used, by their number. A row's score is the sum over its uses of decay^(steps since then).

    Invariant: `_last` is -1 for rows that were in use and are not now. Whoever asks does so of rows that once were.
    """

    def __init__(self, described: EvictionDescription) -> None:
        self.described = described
        self._last = GrowingArray(None, np.int64)
        self._score = GrowingArray(None, np.float32)

    def grow(self, rows: int) -> None:
        """Makes place for so many rows. Raises MemoryError."""
        self._last.grow(rows)
        if self.described.score is not None:
            self._score.grow(rows)

    def used(self, rows: Array, step: int, *, new: bool) -> None:
        """Rows (n), distinct, are used in a step; `new`: for the first time."""
        if self.described.score is not None:
            score = np.float32(1) if new else self._faded(rows, step) + np.float32(1)
            self._score.array[rows] = score
        self._last.array[rows] = step

    def here(self, stop: int) -> Array:
        """Which of the rows up to `stop` are in use (stop) bool."""
        found: Array = self._last.array[:stop] >= 0
        return found

    def told(self, rows: Array) -> Columns:
        """What is known of rows (n), for `restore`."""
        found = {USED: self._last.array[rows]}
        if self.described.score is not None:
            found[SCORE] = self._score.array[rows]
        return found

    def restore(self, rows: Array, told: Columns) -> None:
        """These rows are in use, and were used as `told`."""
        self._last.array[rows] = told[USED]
        if self.described.score is not None:
            self._score.array[rows] = told[SCORE]

    def gone(self, rows: Array) -> None:
        """These rows are out of use."""
        self._last.array[rows] = -1

    def due(self, low: int, high: int, step: int) -> Array:
        """Which rows of `low` to `high` go at the boundary before `step`: their numbers (n) int64."""
        last = self._last.array[low:high]
        rows = low + np.flatnonzero(last >= 0)
        goes = np.zeros(len(rows), np.bool_)
        if self.described.age is not None:
            goes |= step - self._last.array[rows] > self.described.age
        if self.described.score is not None:
            goes |= self._faded(rows, step) < np.float32(self.described.score)
        found: Array = rows[goes]
        return found

    def _faded(self, rows: Array, step: int) -> Array:
        """Scores (n) float32 as they are at a step. By repeated squares: multiplications are the same everywhere,
        powers are not."""
        score = self._score.array[rows]
        left, factor = step - self._last.array[rows], np.float32(self.described.decay)
        while left.any():
            np.multiply(score, factor, out=score, where=(left & 1).astype(np.bool_))
            left >>= 1
            factor *= factor
        return score


# --- The rows of a table that a shard holds: found by their places there, brought into being, read and updated --------


SEEN: Final = "row/seen"
BOUNDS: Final = "table/bounds"
"""Names in a snapshot: of what rows are, which updates each has seen, and when it was last looked for old ones."""

FirstOf = Callable[[Array], Array]
"""first(places): the first values (n, width) of rows by their places (n)."""


class HeldRows(ABC):
    """Rows have numbers, by which `arrays` are read; -1 stands for a row that is not here. Callers name places."""

    def __init__(self, arrays: RowArrays, history: RowHistory | None) -> None:
        self.arrays = arrays
        self.history = history
        """Which updates rows have seen, where semantics are the standard ones."""
        self._captures: list[RowCapture] = []
        self.changes = RowChanges()
        """Since captures before."""

    @property
    @abstractmethod
    def count(self) -> int:
        """How many rows are here."""

    @property
    @abstractmethod
    def stop(self) -> int:
        """A number above those of all rows that are here."""

    @abstractmethod
    def find(self, places: Array) -> Array:
        """The numbers (n) int64 of rows at places (n)."""

    @abstractmethod
    def bring(self, places: Array, step: int, first: FirstOf | None) -> Array:
        """The numbers (n) int64 of rows at places (n), distinct, that are used in a step: those that were not here come
        into being, with their first values where there are any. Raises MemoryError."""

    @abstractmethod
    def admitted(self, places: Array, step: int) -> Array | None:
        """Which of the places (n), distinct, that are pushed in a step have a row, or get one by it (n) bool. None: all
        of them. Each step asks once for each place."""

    @abstractmethod
    def boundary(self, step: int) -> Generator[None, None, int]:
        """The boundary before `step`: what goes by then goes; stops after each piece. How many rows went."""

    def read(self, name: str | None, places: Array) -> tuple[Array, Array | None]:
        """One array (see `RowArrays`) at places (n): a copy (n, width), and which of these rows (n) bool are not here,
        whose part of the copy is undefined; None where all are."""
        rows = self.find(places)
        lacks = rows < 0
        if not len(self.arrays):
            return np.empty((len(places), self.arrays.width), self.arrays.dtype), lacks
        rows[lacks] = 0
        return self.arrays.read(name, rows), lacks

    def has_all(self, places: Array) -> bool:
        return bool((self.find(places) >= 0).all())

    @abstractmethod
    def _here(self) -> Array:
        """Which rows are here (stop) bool, by their numbers."""

    def columns(self, rows: Array) -> Columns:
        """All that is known of rows (n) that are here, but for their places: for `restore`."""
        found = {name or VALUE: self.arrays.read(name, rows) for name in (None, *self.arrays.names)}
        return found if self.history is None else found | {SEEN: self.history.seen(rows)}

    @abstractmethod
    def places_of(self, rows: Array) -> Array:
        """The places (n) of rows (n) that are here."""

    def marks(self) -> Columns:
        """What is known beside that: copies, for `begin_with`."""
        return {} if self.history is None else self.history.marks()

    def begin_with(self, marks: Sequence[Columns], is_here: Callable[[Array], Array]) -> None:
        """Goes on where others were that had parts of the same rows: before any is here. `is_here(places)` (n) bool
        says which are to be."""
        if self.history is not None:
            self.history.begin_with(marks)

    def remove(self, places: Array) -> None:
        """Rows at places (n), distinct, go, where they are here."""
        raise AssertionError("of a table of fixed size no row goes")

    def restore(self, places: Array, columns: Columns) -> Array:
        """Rows at places (n), distinct, are as `columns` has them; their numbers. Raises MemoryError."""
        rows = self.bring(places, 0, None)
        for name in (None, *self.arrays.names):
            self.arrays.write(name, rows, columns[name or VALUE])
        if self.history is not None:
            self.history.restore(rows, columns[SEEN])
        return rows

    def capture(self, step: int, since: int | None = None) -> tuple[RowCapture, Array]:
        """All rows that are here now, or those that have changed since a capture at a step that `changes` knows; and
        the places of those that have gone since then. `release` ends what it costs, but for the next one's `since`."""
        changed, gone = self.changes.captured(step, since) or (None, np.zeros(0, np.int64))
        found = RowCapture(self._here(), lambda rows: {ROWS: self.places_of(rows)} | self.columns(rows), changed)
        self._captures.append(found)
        self.arrays.written = self._written
        return found, gone

    def release(self, capture: RowCapture) -> None:
        """Nothing is taken out of it any more."""
        if capture in self._captures:
            self._captures.remove(capture)

    def _written(self, rows: Array) -> None:
        """These rows are about to change."""
        for one in self._captures:
            one.keep(rows)
        self.changes.mark(rows)

    def close(self) -> None:
        """Gives back what is on disk."""
        self.arrays.close()


# --- A table of a known size: all places are laid out, and a row takes memory once it is written ----------------------


class FixedRows(HeldRows):
    """A place is the row's number. Invariants: rows that were never touched are zeros, and so is their state unless it
    starts at another number; `_untouched` is how many there are. Once there are none, nobody asks which."""

    def __init__(
        self,
        rows: int,
        width: int,
        dtype: np.dtype[Any],
        start: Mapping[str, float],
        place: TablePlace | None = None,
        *,
        history: RowHistory | None = None,
    ) -> None:
        """Raises MemoryError, and OSError where the place is none."""
        super().__init__(RowArrays(width, dtype, start, capacity=rows, place=place), history)
        self._touched = zeros_on_demand((rows,), np.dtype(np.bool_))
        self._untouched = rows
        self._huge = HugeBlocks(self.arrays.mapped) if self.arrays.mapped else None

    @property
    def count(self) -> int:
        return len(self._touched) - self._untouched

    @property
    def stop(self) -> int:
        return len(self._touched)

    def find(self, places: Array) -> Array:
        return np.where(self._touched[places], places, -1)

    def has_all(self, places: Array) -> bool:
        return not self._untouched or bool(self._touched[places].all())

    def read(self, name: str | None, places: Array) -> tuple[Array, Array | None]:
        return self.arrays.read(name, places), ~self._touched.take(places) if self._untouched else None

    def bring(self, places: Array, step: int, first: FirstOf | None) -> Array:
        if self._untouched and not np.logical_and.reduce(known := self._touched.take(places)):
            new = places[~known]
            if first is not None:
                self.arrays.write(None, new, first(new))
            self.arrays.begin_state(new, again=0)
            self._touched[new] = True
            self._untouched -= len(new)
            if self.history is not None:
                self.history.begin(new)
            if self._huge is not None:
                self._huge.came(new)
        if self._huge is not None and self._huge.waiting:
            self._huge.advance()
        return places

    def admitted(self, places: Array, step: int) -> Array | None:
        return None

    def boundary(self, step: int) -> Generator[None, None, int]:
        yield from ()  # Nothing goes.
        return 0

    def places_of(self, rows: Array) -> Array:
        return rows

    def _here(self) -> Array:
        return self._touched


# --- A table whose rows come into being by any 64-bit id, and may go again --------------------------------------------


FIRST_ELEMENTS: Final = 1 << 17
"""Elements of first values that are made at once."""


class GrowingRows(HeldRows):
    """A place is the id, uint64. Invariant: numbers that `_numbers` has given out and not got back are those in
    `_index`, and `_eviction` knows when each was used."""

    def __init__(
        self,
        width: int,
        dtype: np.dtype[Any],
        start: Mapping[str, float],
        growth: GrowthDescription,
        *,
        salt: int,
        draw: Draw | None = None,
        place: TablePlace | None = None,
        history: RowHistory | None = None,
    ) -> None:
        """`salt` is of `IdIndex`; `draw` makes the numbers that admit by probability. Raises ValueError where those are
        wanted and it is missing, OSError where the place is none."""
        super().__init__(RowArrays(width, dtype, start, capacity=None, place=place), history)
        self._index = IdIndex(salt)
        self._numbers = RowNumbers()
        self._admission = _admission(growth, salt, draw)
        self._eviction = Eviction(growth.eviction) if growth.eviction is not None else None
        self._bounds = 0

    @property
    def count(self) -> int:
        return self._index.count

    @property
    def stop(self) -> int:
        return self._numbers.stop

    def find(self, places: Array) -> Array:
        return self._index.find(places)

    def bring(self, places: Array, step: int, first: FirstOf | None) -> Array:
        again = 0

        def number(count: int) -> Array:
            nonlocal again
            self.arrays.grow(self._numbers.stop + count)
            if self._eviction is not None:
                self._eviction.grow(len(self.arrays))
            if self.history is not None:
                self.history.grow(len(self.arrays))
            numbers, again = self._numbers.take(count)
            return numbers

        rows, new = self._index.find_or_add(places, number)
        if self._eviction is not None:
            known = np.ones(len(rows), np.bool_)
            known[new] = False
            if self.arrays.written is not None:
                self._written(rows[known])
            self._eviction.used(rows[known], step, new=False)
            self._eviction.used(rows[new], step, new=True)
        if len(new):
            numbers = rows[new]
            if first is not None:
                self._put_first(numbers, places.take(new), first)
            self.arrays.begin_state(numbers, again=again)
            if self.history is not None:
                self.history.begin(numbers)
        return rows

    def _put_first(self, numbers: Array, places: Array, first: FirstOf) -> None:
        """Makes first values a part at a time, and puts them where they belong while they are in the cache."""
        a_part = max(FIRST_ELEMENTS // max(self.arrays.width, 1), 1)
        for low in range(0, len(numbers), a_part):
            self.arrays.write(None, numbers[low : low + a_part], first(places[low : low + a_part]))

    def admitted(self, places: Array, step: int) -> Array | None:
        if self._admission is None:
            return None
        found = self._index.find(places) >= 0
        new = np.flatnonzero(~found)
        found[new] = self._admission.admitted(places[new], step)
        return found

    def boundary(self, step: int) -> Generator[None, None, int]:
        """Looked for once in `every` steps: at the first step with rows from such a boundary on."""
        eviction, gone = self._eviction, 0
        if eviction is None or step // eviction.described.every <= self._bounds:
            return 0
        self._bounds = step // eviction.described.every
        for low in range(0, self._numbers.stop, SWEPT_AT_ONCE):
            rows = eviction.due(low, min(low + SWEPT_AT_ONCE, self._numbers.stop), step)
            self._remove(rows)
            gone += len(rows)
            yield
            yield from self._index.tidy()
        if isinstance(self._admission, AdmitByUses):
            yield from self._admission.forget(step, eviction.described.age)
        return gone

    def remove(self, places: Array) -> None:
        rows = self.find(places)
        self._remove(rows[rows >= 0])
        for _ in self._index.tidy():
            pass

    def _remove(self, rows: Array) -> None:
        """These rows (n) go."""
        if self.arrays.written is not None:
            self._written(rows)
        ids = self._index.ids.array[rows]
        self.changes.gone(ids)
        if self._eviction is not None:
            self._eviction.gone(rows)
        self._index.remove(ids)
        self._numbers.give_back(rows)
        if self.history is not None:
            self.history.gone(rows)

    def places_of(self, rows: Array) -> Array:
        return self._index.ids.array.take(rows)

    def columns(self, rows: Array) -> Columns:
        found = super().columns(rows)
        return found if self._eviction is None else found | self._eviction.told(rows)

    def restore(self, places: Array, columns: Columns) -> Array:
        self.remove(places)
        rows = super().restore(places, columns)
        if self._eviction is not None:
            self._eviction.restore(rows, columns)
        return rows

    def marks(self) -> Columns:
        counts = self._admission.counts() if isinstance(self._admission, AdmitByUses) else {}
        return super().marks() | {BOUNDS: np.array([self._bounds])} | counts

    def begin_with(self, marks: Sequence[Columns], is_here: Callable[[Array], Array]) -> None:
        super().begin_with(marks, is_here)
        self._bounds = max(int(one[BOUNDS][0]) for one in marks)
        if isinstance(self._admission, AdmitByUses) and COUNTED in marks[0]:
            counts = {name: np.concatenate([one[name] for one in marks]) for name in (COUNTED, COUNTS, LAST)}
            mine = is_here(counts[COUNTED].view(np.uint64))
            self._admission.restore({name: array[mine] for name, array in counts.items()})

    def _here(self) -> Array:
        return np.ones(self.stop, np.bool_) if self._eviction is None else self._eviction.here(self.stop)


def _admission(growth: GrowthDescription, salt: int, draw: Draw | None) -> AdmitByUses | AdmitByChance | None:
    """None: every id comes in."""
    if growth.uses > 1:
        return AdmitByUses(growth.uses, salt)
    if growth.probability >= 1:
        return None
    if draw is None:
        raise ValueError("what admits by probability needs numbers to do so")
    return AdmitByChance(growth.probability, draw)
