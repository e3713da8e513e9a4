"""The rows of a table that a shard holds: all of them laid out, or those that came into being; which ids come into a
growing table, and which rows go again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Final, Protocol

import numpy as np

from weft_kernels.rules.record import Hyper, Rule
from weft_kvstore.arrays import Array, zeros_on_demand
from weft_kvstore.description.records import EvictionDescription, GrowthDescription
from weft_kvstore.rows.arrays import RowArrays, RowHistory
from weft_kvstore.rows.index import IdIndex
from weft_kvstore.rows.memory import GrowingArray, HugeBlocks, TablePlace
from weft_kvstore.rows.rows import RowNumbers

# ----------------------------------------------------------------------------------------------------------------------
# Which ids come into a growing table: decided for the ids of one step, from counters and numbers that belong to table,
# id and step.


CHANCE: Final = "admission"
"""What the numbers that admit by probability are drawn for."""

SWEPT_AT_ONCE: Final = 1 << 18
"""Rows that are looked at between two looks at the socket."""

Draw = Callable[[Array, int], Array]
"""draw(ids, step): a number of each id (n) uint64 in [0, 1), float64 (n)."""


class Admission(Protocol):
    def admitted(self, ids: Array, step: int) -> Array:
        """Which of the ids (n) uint64, distinct, none of which is in the table, come in with this use of theirs (n)
        bool. Each step is asked once for each id. Raises MemoryError."""

    def forget(self, step: int, age: int | None) -> Iterator[None]:
        """Forgets ids that were last used over `age` steps ago; None: none. Stops after each piece."""


class AdmitAll:
    def admitted(self, ids: Array, step: int) -> Array:
        return np.ones(len(ids), np.bool_)

    def forget(self, step: int, age: int | None) -> Iterator[None]:
        return iter(())


class AdmitByChance:
    """Each use admits with one probability. Needs no memory."""

    def __init__(self, probability: float, draw: Draw) -> None:
        self._probability = probability
        self._draw = draw

    def admitted(self, ids: Array, step: int) -> Array:
        found: Array = self._draw(ids, step) < self._probability
        return found

    def forget(self, step: int, age: int | None) -> Iterator[None]:
        return iter(())


class AdmitByUses:
    """The use number `uses` admits. Counts the uses of each id that is not in; where rows of an age are evicted, an id
    whose last use is as long ago begins to count anew, so that what is counted is bounded too."""

    def __init__(self, uses: int, salt: int) -> None:
        self._uses = uses
        self._index = IdIndex(salt)
        self._numbers = RowNumbers()
        self._counts = GrowingArray(None, np.uint32)
        self._last = GrowingArray(None, np.int64)

    @property
    def counted(self) -> int:
        """Ids that are counted and not admitted yet."""
        return self._index.count

    def admitted(self, ids: Array, step: int) -> Array:
        places = self._index.find(ids)
        new = np.flatnonzero(places < 0)
        if self._uses <= 1:
            return np.ones(len(ids), np.bool_)
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
        if age is None:
            return
        for low in range(0, self._numbers.stop, SWEPT_AT_ONCE):
            high = min(low + SWEPT_AT_ONCE, self._numbers.stop)
            last = self._last.array[low:high]
            self._drop(low + np.flatnonzero((last >= 0) & (step - last > age)))
            yield
            yield from self._index.tidy()

    def _drop(self, places: Array) -> None:
        self._index.remove(self._index.ids.array[places])
        self._last.array[places] = -1
        self._numbers.give_back(places)


# --- Which rows of a growing table go: decided at the boundary of a step from when and how often they were used -------


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

    def due(self, low: int, high: int, step: int) -> Array:
        """Which rows of `low` to `high` go at the boundary before `step`: their numbers (n) int64, which are out of use
        from now on."""
        last = self._last.array[low:high]
        rows = low + np.flatnonzero(last >= 0)
        goes = np.zeros(len(rows), np.bool_)
        if self.described.age is not None:
            goes |= step - self._last.array[rows] > self.described.age
        if self.described.score is not None:
            goes |= self._faded(rows, step) < np.float32(self.described.score)
        self._last.array[rows[goes]] = -1
        return rows[goes]

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


FirstOf = Callable[[Array], Array]
"""first(places): the first values (n, width) of rows by their places (n)."""


class HeldRows(ABC):
    """Rows have numbers, by which `arrays` are read; -1 stands for a row that is not here. Callers name places."""

    arrays: RowArrays
    history: RowHistory | None
    """Which updates rows have seen, where semantics are the standard ones."""

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

    def values(self, places: Array) -> tuple[Array, Array]:
        """Values (n, width) of rows at places (n), a new array, and which of them (n) bool are not here: those are
        undefined."""
        rows = self.find(places)
        lacks = rows < 0
        if not len(self.arrays):
            return np.empty((len(places), self.arrays.width), self.arrays.dtype), lacks
        rows[lacks] = 0
        return self.arrays.values(rows), lacks

    def state(self, name: str, places: Array, start: float) -> Array:
        """The rule's state of that name of rows at places (n), (n, width); a new array. `start`: of those not here."""
        rows = self.find(places)
        lacks = rows < 0
        if not len(self.arrays):
            return np.full((len(places), self.arrays.width), start, self.arrays.dtype)
        rows[lacks] = 0
        found = self.arrays.state(name, rows)
        found[lacks] = start
        return found

    def has_all(self, places: Array) -> bool:
        return bool((self.find(places) >= 0).all())

    def apply(self, rule: Rule, rows: Array, gradient: Array, *, step: int, hyper: Hyper) -> None:
        """Updates rows by their numbers; see `RowArrays.apply`."""
        self.arrays.apply(rule, rows, gradient, step=step, hyper=hyper)

    def close(self) -> None:
        """Gives back what is on disk."""
        self.arrays.close()


# --- A table of a known size: all places are laid out, and a row takes memory once it is written ----------------------


class FixedRows(HeldRows):
    """A place is the row's number. Invariant: rows that were never touched are zeros, and so is their state unless it
    starts at another number."""

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
        self.arrays = RowArrays(width, dtype, start, capacity=rows, place=place)
        self.history = history
        self._touched = zeros_on_demand((rows,), np.dtype(np.bool_))
        self._huge = HugeBlocks(self.arrays.mapped) if self.arrays.mapped else None

    @property
    def count(self) -> int:
        return int(np.count_nonzero(self._touched))

    @property
    def stop(self) -> int:
        return len(self._touched)

    def find(self, places: Array) -> Array:
        return np.where(self._touched[places], places, -1)

    def has_all(self, places: Array) -> bool:
        return bool(self._touched[places].all())

    def values(self, places: Array) -> tuple[Array, Array]:
        return self.arrays.values(places), ~self._touched.take(places)

    def bring(self, places: Array, step: int, first: FirstOf | None) -> Array:
        known = self._touched.take(places)
        if not np.logical_and.reduce(known):
            new = places[~known]
            if first is not None:
                self.arrays.put(new, first(new))
            self.arrays.begin_state(new, again=0)
            self._touched[new] = True
            if self.history is not None:
                self.history.begin(new)
            if self._huge is not None:
                self._huge.came(new)
        if self._huge:
            self._huge.advance()
        return places

    def admitted(self, places: Array, step: int) -> Array | None:
        return None

    def boundary(self, step: int) -> Generator[None, None, int]:
        yield from ()  # Nothing goes.
        return 0


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
        self.arrays = RowArrays(width, dtype, start, capacity=None, place=place)
        self.history = history
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
            self.arrays.put(numbers[low : low + a_part], first(places[low : low + a_part]))

    def admitted(self, places: Array, step: int) -> Array | None:
        if isinstance(self._admission, AdmitAll):
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
            self._index.remove(self._index.ids.array[rows])
            self._numbers.give_back(rows)
            if self.history is not None:
                self.history.gone(rows)
            gone += len(rows)
            yield
            yield from self._index.tidy()
        yield from self._admission.forget(step, eviction.described.age)
        return gone


def _admission(growth: GrowthDescription, salt: int, draw: Draw | None) -> Admission:
    if growth.uses > 1:
        return AdmitByUses(growth.uses, salt)
    if growth.probability >= 1:
        return AdmitAll()
    if draw is None:
        raise ValueError("what admits by probability needs numbers to do so")
    return AdmitByChance(growth.probability, draw)
