"""The rows of a table as they are at one moment, taken out block by block while they are written. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np

from weft_kvstore.arrays import Array

BLOCK_BYTES: Final = 1 << 22
"""Of rows that are taken out at once: some milliseconds' work between two pieces of a merge."""
MOST_BLOCKS: Final = 1 << 12
"""Of one table: each is named in the head of a file, which is read whole."""

Columns = dict[str, Array]
"""All that is known of some rows: arrays (n, ...), by the names that a snapshot has for them."""


def a_block(rows: int, row_bytes: int) -> int:
    """How many of so many rows, of so many bytes each, are taken out at once."""
    return max(BLOCK_BYTES // max(row_bytes, 1), -(-rows // MOST_BLOCKS), 1)


class RowCapture:
    """Rows by their numbers. Nothing is copied when it is made. What is written before it was taken out is copied first
    (`keep`), and is what is taken out next: so little waits.

    Invariant: a bit of `_open` is set for each row that was neither taken out nor copied; all of them are at `_next` or
    behind it. `left` counts these and those that were copied.
    """

    __slots__ = ("_kept", "_next", "_open", "_read", "_stop", "left")

    def __init__(self, here: Array, read: Callable[[Array], Columns]) -> None:
        """`here` (stop) bool: which rows there are; `read` gives what is known of rows (n) int64."""
        self._open = np.packbits(here, bitorder="little")
        self._stop = len(here)
        self._read = read
        self._next = 0
        self._kept: deque[tuple[int, Columns]] = deque()
        self.left = int(np.count_nonzero(here))

    def keep(self, rows: Array) -> None:
        """These rows (n) int64, distinct, are about to change."""
        rows = rows[(rows >= self._next) & (rows < self._stop)]
        rows = rows[(self._open[rows >> 3] >> (rows & 7).astype(np.uint8)) & 1 > 0]
        if len(rows):
            self._kept.append((len(rows), self._read(rows)))
            for bit in range(8):  # Rows of one byte differ in the bit: each is written once at a time.
                self._open[rows[rows & 7 == bit] >> 3] &= np.uint8(~(1 << bit) & 0xFF)

    def take(self, count: int) -> Columns:
        """The next rows, so many or all that are left: those that were copied first."""
        parts: list[Columns] = []
        wanted = count = min(count, self.left)
        while wanted and self._kept:
            there, columns = self._kept.popleft()
            if there > wanted:
                self._kept.appendleft((there - wanted, {name: array[wanted:] for name, array in columns.items()}))
                columns = {name: array[:wanted] for name, array in columns.items()}
            parts.append(columns)
            wanted -= min(there, wanted)
        while wanted:
            rows = self._following(wanted)
            if len(rows):
                parts.append(self._read(rows))
                wanted -= len(rows)
        self.left -= count
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _following(self, most: int) -> Array:
        """Some of the next open rows, which are open no more."""
        low = self._next >> 3
        high = min(low + max(most >> 3, 1 << 10), len(self._open))
        bits = np.unpackbits(self._open[low:high], bitorder="little")
        rows: Array = 8 * low + np.flatnonzero(bits)
        rows = rows[rows >= self._next][:most]
        self._next = int(rows[-1]) + 1 if len(rows) == most else 8 * high
        return rows
