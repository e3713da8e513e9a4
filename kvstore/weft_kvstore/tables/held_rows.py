"""The rows of a table that a shard holds: found by their places there, brought into being, read and updated. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator

import numpy as np

from weft_kernels.rules.record import Hyper, Rule
from weft_kvstore.arrays.array import Array
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
