"""A table of a known size: all places are laid out, and a row takes memory once it is written. Pure."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import numpy as np

from weft_kvstore.arrays.array import Array
from weft_kvstore.arrays.zeros import zeros_on_demand
from weft_kvstore.tables.held_rows import FirstOf, HeldRows
from weft_kvstore.tables.huge_blocks import HugeBlocks
from weft_kvstore.tables.place import TablePlace
from weft_kvstore.tables.row_arrays import RowArrays
from weft_kvstore.tables.row_history import RowHistory


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
