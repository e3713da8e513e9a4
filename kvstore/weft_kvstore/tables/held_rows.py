"""The rows of a table that a shard holds: found by their places there, brought into being, read and updated. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import numpy as np

from weft_kernels.rules.record import Hyper, Rule
from weft_kvstore.arrays.array import Array
from weft_kvstore.arrays.zeros import zeros_on_demand
from weft_kvstore.tables.huge_blocks import HugeBlocks
from weft_kvstore.tables.place import TablePlace
from weft_kvstore.tables.row_arrays import RowArrays
from weft_kvstore.tables.row_history import RowHistory

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


class FixedRows(HeldRows):
    """A table of a known size: a place is the row's number. Invariant: rows that were never touched are zeros, and so
    is their state unless it starts at another number."""

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
        yield from _nothing()
        return 0


def _nothing() -> Iterator[None]:
    return iter(())
