"""Which ids come into a growing table, and which rows go again. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Protocol

import numpy as np

from weft_kvstore.arrays import Array
from weft_kvstore.description.records import EvictionDescription
from weft_kvstore.rows.index import IdIndex
from weft_kvstore.rows.memory import GrowingArray
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
