"""Which rows of a growing table go: decided at the boundary of a step from when and how often they were used. Pure."""

from __future__ import annotations

import numpy as np

from weft_kvstore.arrays.array import Array
from weft_kvstore.description.records import EvictionDescription
from weft_kvstore.tables.growing_array import GrowingArray


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
