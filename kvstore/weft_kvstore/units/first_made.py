"""First values of a table's rows, of which those that were shown last are not made again. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np

from weft_kvstore.arrays.array import Array
from weft_kvstore.tables.rows import Rows

MakeRows = Callable[[Array], Array]
"""make(rows): the first values (n, width) of the table's rows (n) int64."""

KEPT_BYTES: Final = 16 << 20
"""What is kept of one table, at most: a pull's rows are pushed soon after it, or pulled by another slot."""

KEPT_PARTS: Final = 64
"""Pulls of which rows are kept, at most: each is looked into for what is asked."""


class FirstMade:
    """Remembers the rows that pulls were shown. Invariant: `_bytes` is the sum over `_kept`, the newest last."""

    __slots__ = ("_bytes", "_kept", "_make")

    def __init__(self, make: MakeRows) -> None:
        self._make = make
        self._kept: deque[Rows] = deque()
        self._bytes = 0

    def shown(self, ids: Array) -> Array:
        """First values (n, width) of rows (n) int64, distinct and ascending, that a push may soon bring into being."""
        made, found = self._made(ids)
        if made is not None and made.nbytes <= KEPT_BYTES:
            self._kept.append(made)
            self._bytes += made.nbytes
            while self._bytes > KEPT_BYTES or len(self._kept) > KEPT_PARTS:
                self._bytes -= self._kept.popleft().nbytes
        return found

    def taken(self, ids: Array) -> Array:
        """The same, of rows that come into being now: nobody will ask for their first values again."""
        return self._made(ids)[1]

    def _made(self, ids: Array) -> tuple[Rows | None, Array]:
        """What had to be made now, if anything, and the values of all ids."""
        left = np.arange(len(ids))
        known: list[tuple[Array, Array]] = []
        for rows in reversed(self._kept):
            places = np.minimum(np.searchsorted(rows.ids, ids[left]), len(rows.ids) - 1)
            here = rows.ids[places] == ids[left]
            if here.any():
                known.append((left[here], rows.values[places[here]]))
                left = left[~here]
                if not left.size:
                    break
        made = Rows(ids[left], self._make(ids[left])) if left.size or not known else None
        if not known and made is not None:
            return (made if left.size else None), made.values
        found = np.empty((len(ids), known[0][1].shape[1]), known[0][1].dtype)
        for spots, values in known:
            found[spots] = values
        if made is not None:
            found[left] = made.values
        return made, found
