"""Values that were set for a version that is still to come: of one place the last one. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any, Final, Protocol, TypeVar

import numpy as np

from weft_kvstore.arrays.zeros import zeros_on_demand
from weft_kvstore.tables.growing_array import GrowingArray
from weft_kvstore.tables.id_index import IdIndex
from weft_kvstore.tables.rows import Rows

S = TypeVar("S")

ROWS_LOOKED_AT: Final = 1 << 20
"""Rows among which those that were set are looked for at once."""


class SetsAhead(Protocol[S]):
    """Values of one version."""

    def __len__(self) -> int:
        """How many parts wait."""

    @property
    def nbytes(self) -> int:
        """Bytes of the values, but for those that lie where they came from."""

    def add(self, value: S) -> None:
        """One more value. Raises MemoryError."""

    def values(self) -> Iterator[S | None]:
        """What was set, piece by piece; None where a piece had nothing."""


class RowsAhead:
    """Rows by their place in arrays as large as the table, of which only what is written takes memory: however often
    rows are set, no more of them wait than the table has, and one more costs what it has itself."""

    def __init__(self, rows: int, width: int, dtype: np.dtype[Any], *, a_piece: int) -> None:
        """`a_piece` rows are given back at once. Raises MemoryError."""
        self._a_piece = a_piece
        self._values = zeros_on_demand((rows, width), dtype)
        self._is_set = zeros_on_demand((rows,), np.dtype(np.bool_))
        self._first, self._stop = rows, 0
        self._count = 0

    def __len__(self) -> int:
        return int(self._stop > 0)

    @property
    def nbytes(self) -> int:
        return self._count * (self._values.itemsize * int(self._values.shape[1]) + 1)

    def add(self, value: Rows) -> None:
        if not len(value.ids):
            return
        self._values[value.ids] = value.values
        self._count += int(np.count_nonzero(~self._is_set[value.ids]))
        self._is_set[value.ids] = True
        self._first = min(self._first, int(value.ids[0]))
        self._stop = max(self._stop, int(value.ids[-1]) + 1)

    def values(self) -> Iterator[Rows | None]:
        for low in range(self._first, self._stop, ROWS_LOOKED_AT):
            found = low + np.flatnonzero(self._is_set[low : min(low + ROWS_LOOKED_AT, self._stop)])
            yield None
            for begin in range(0, len(found), self._a_piece):
                ids = found[begin : begin + self._a_piece]
                yield Rows(ids, self._values[ids])


class IdsAhead:
    """Rows of a growing table by their ids: what is set once more takes no more memory."""

    def __init__(self, width: int, dtype: np.dtype[Any], *, a_piece: int, salt: int | None = None) -> None:
        """`a_piece` rows are given back at once; `salt` is of `IdIndex`."""
        self._a_piece = a_piece
        self._index = IdIndex(secrets.randbits(64) if salt is None else salt)
        self._values = GrowingArray(width, dtype)

    def __len__(self) -> int:
        return int(self._index.count > 0)

    @property
    def nbytes(self) -> int:
        return self._index.count * self._values.row_bytes + self._index.nbytes

    def add(self, value: Rows) -> None:
        rows = self._index.find(value.ids)
        new = np.flatnonzero(rows < 0)
        rows[new] = self._index.count + np.arange(len(new))
        most = self._index.count + len(new)
        if most > len(self._values):
            self._values.grow(max(most, 3 * len(self._values) // 2))
        self._index.add(value.ids[new], rows[new])
        self._values.array[rows] = value.values

    def values(self) -> Iterator[Rows | None]:
        for low in range(0, self._index.count, self._a_piece):
            high = min(low + self._a_piece, self._index.count)
            ids = self._index.ids.array[low:high]
            order = np.argsort(ids)
            yield Rows(ids[order], self._values.array[low:high][order])
