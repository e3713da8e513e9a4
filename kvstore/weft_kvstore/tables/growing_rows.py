"""A table whose rows come into being by any 64-bit id, and may go again. Pure."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, Final

import numpy as np

from weft_kvstore.arrays.array import Array
from weft_kvstore.description.records import GrowthDescription
from weft_kvstore.tables.admission import SWEPT_AT_ONCE, Admission, AdmitAll, AdmitByChance, AdmitByUses, Draw
from weft_kvstore.tables.eviction import Eviction
from weft_kvstore.tables.held_rows import FirstOf, HeldRows
from weft_kvstore.tables.id_index import IdIndex
from weft_kvstore.tables.place import TablePlace
from weft_kvstore.tables.row_arrays import RowArrays
from weft_kvstore.tables.row_history import RowHistory
from weft_kvstore.tables.row_numbers import RowNumbers

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

    @property
    def index_bytes(self) -> int:
        return self._index.nbytes

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
