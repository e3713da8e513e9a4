"""Numbers of rows: those that were freed are given out again before new ones. Pure."""

from __future__ import annotations

import numpy as np

from weft_kvstore.arrays.array import Array


class RowNumbers:
    """`stop` is above every number that was ever given out. Which row has which number changes no value."""

    __slots__ = ("_free", "_freed", "stop")

    def __init__(self) -> None:
        self.stop = 0
        self._free: list[Array] = []
        self._freed = 0

    @property
    def free(self) -> int:
        """How many numbers below `stop` are free."""
        return self._freed

    def take(self, count: int) -> tuple[Array, int]:
        """So many numbers (count) int64, and how many of them, from the front, were used before."""
        parts: list[Array] = []
        again = 0
        while again < count and self._free:
            last = self._free.pop()
            if len(last) > count - again:
                self._free.append(last[count - again :])
                last = last[: count - again]
            parts.append(last)
            again += len(last)
        self._freed -= again
        fresh = np.arange(self.stop, self.stop + count - again)
        self.stop += len(fresh)
        return np.concatenate([*parts, fresh]), again

    def give_back(self, numbers: Array) -> None:
        if len(numbers):
            self._free.append(numbers)
            self._freed += len(numbers)
