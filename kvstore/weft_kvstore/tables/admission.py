"""Which ids come into a growing table: decided for the ids of one step, from counters and numbers that belong to table,
id and step. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Protocol

import numpy as np

from weft_kvstore.arrays.array import Array
from weft_kvstore.tables.growing_array import GrowingArray
from weft_kvstore.tables.id_index import IdIndex
from weft_kvstore.tables.row_numbers import RowNumbers

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
