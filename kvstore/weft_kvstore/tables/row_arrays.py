"""A table's values and the rule's state by the number of the row, in memory or on disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from weft_kernels.row_copies import put_rows, taken_rows
from weft_kernels.rules.record import Hyper, Rule
from weft_kernels.rules.rows import apply_to_rows
from weft_kvstore.arrays.array import Array
from weft_kvstore.arrays.zeros import zeros_on_demand
from weft_kvstore.tables.disk_array import DiskArray
from weft_kvstore.tables.growing_array import GrowingArray
from weft_kvstore.tables.place import TablePlace

LEAST_ROWS: Final = 1 << 10


class FixedArray:
    """As many rows as there ever are, in memory, of which only those that are written take some."""

    def __init__(self, rows: int, width: int, dtype: np.dtype[Any]) -> None:
        """Raises MemoryError where not even the addresses are to be had."""
        self.array = zeros_on_demand((rows, width), dtype)

    def grow(self, rows: int) -> None:
        assert rows <= len(self.array)


class RowArrays:
    """`weight`, and a state array for each name: all of as many rows, zeros until they are written.

    `capacity`: how many rows there will be; None: they grow.
    """

    __slots__ = ("_on_disk", "_start", "_state", "_weight")

    def __init__(
        self,
        width: int,
        dtype: np.dtype[Any],
        start: Mapping[str, float],
        *,
        capacity: int | None,
        place: TablePlace | None = None,
    ) -> None:
        """`start` has the number that each state begins at. Raises MemoryError, and OSError where the place is none."""
        arrays = 1 + len(start)
        large = capacity is None or capacity * width * dtype.itemsize * arrays > (place.memory_bytes if place else 0)
        self._on_disk: list[DiskArray] = []

        def make() -> FixedArray | GrowingArray | DiskArray:
            if place is not None and large:
                one = DiskArray(place.directory, place.memory_bytes // arrays, width, dtype)
                one.grow(capacity or 0)
                self._on_disk.append(one)
                return one
            return GrowingArray(width, dtype) if capacity is None else FixedArray(capacity, width, dtype)

        self._weight = make()
        self._start = dict(start)
        self._state = {name: make() for name in start}

    def __len__(self) -> int:
        return len(self._weight.array)

    @property
    def width(self) -> int:
        return int(self._weight.array.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._weight.array.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, were every row written."""
        return sum(one.array.nbytes for one in (self._weight, *self._state.values()))

    @property
    def mapped(self) -> list[Array]:
        """All arrays, where they are in memory and of one size for good."""
        every = (self._weight, *self._state.values())
        return [one.array for one in every if isinstance(one, FixedArray)]

    def grow(self, rows: int) -> None:
        """Makes place for so many rows. Raises MemoryError."""
        if rows > len(self):
            for one in (self._weight, *self._state.values()):
                one.grow(max(rows, len(self) * 3 // 2 if not self._on_disk else len(self) * 9 // 8, LEAST_ROWS))

    def values(self, rows: Array) -> Array:
        """Rows (n, width); a new array."""
        return self._taken(self._weight, rows)

    def state(self, name: str, rows: Array) -> Array:
        """The state of that name of rows (n, width); a new array."""
        return self._taken(self._state[name], rows)

    def put(self, rows: Array, values: Array) -> None:
        begin = 0
        for some in self._pieces(rows):
            part, adjacent = values[begin : begin + len(some)], _adjacent(some)
            if adjacent is None:
                put_rows(self._weight.array, some, part)
            else:
                self._weight.array[adjacent] = part
            begin += len(some)

    def put_state(self, name: str, rows: Array, values: Array) -> None:
        begin = 0
        for some in self._pieces(rows):
            put_rows(self._state[name].array, some, values[begin : begin + len(some)])
            begin += len(some)

    def begin_state(self, rows: Array, *, again: int) -> None:
        """Rows begin anew, of which the first `again` were used before."""
        for some in self._pieces(rows):
            for name, one in self._state.items():
                if self._start[name]:
                    one.array[some] = self._start[name]
        if again and self._state:
            for some in self._pieces(rows[:again]):
                for name, one in self._state.items():
                    one.array[some] = self._start[name]

    def apply(self, rule: Rule, rows: Array, gradient: Array, *, step: int, hyper: Hyper) -> None:
        """Updates rows (n), distinct, by a gradient (n, width) that is not written. Raises what the rule raises."""
        begin = 0
        for some in self._pieces(rows):
            part = gradient[begin : begin + len(some)]
            state = {name: one.array for name, one in self._state.items()}
            apply_to_rows(rule, self._weight.array, part, state, some, step=step, hyper=hyper)
            begin += len(some)

    def close(self) -> None:
        for one in self._on_disk:
            one.close()

    def _taken(self, one: FixedArray | GrowingArray | DiskArray, rows: Array) -> Array:
        if not isinstance(one, DiskArray):
            return taken_rows(one.array, rows)
        found = np.empty((len(rows), self.width), one.dtype)
        begin = 0
        for some in one.pieces(rows):
            one.array.take(some, axis=0, out=found[begin : begin + len(some)], mode="clip")
            begin += len(some)
        return found

    def _pieces(self, rows: Array) -> Iterator[Array]:
        """Parts of rows, small enough for what of the disk may be in memory; all arrays have rows of one size."""
        if not self._on_disk:
            return iter((rows,))
        return self._on_all_disks(rows)

    def _on_all_disks(self, rows: Array) -> Iterator[Array]:
        first, *others = self._on_disk
        for some in first.pieces(rows):
            for other in others:
                for _ in other.pieces(some):
                    pass
            yield some


def _adjacent(rows: Array) -> slice | None:
    """The rows as a slice where they are one behind the other: what is new is. None where they are not."""
    if len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1 and bool((rows[1:] > rows[:-1]).all()):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return None
