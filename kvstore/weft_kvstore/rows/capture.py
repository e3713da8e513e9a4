"""The rows of a table as they are at one moment, taken out block by block while they are written. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np

from weft_kvstore.arrays import Array
from weft_kvstore.rows.memory import GrowingArray

BLOCK_BYTES: Final = 1 << 22
"""Of rows that are taken out at once: some milliseconds' work between two pieces of a merge."""
MOST_BLOCKS: Final = 1 << 12
"""Of one table: each is named in the head of a file, which is read whole."""

Columns = dict[str, Array]
"""All that is known of some rows: arrays (n, ...), by the names that a snapshot has for them."""


def a_block(rows: int, row_bytes: int) -> int:
    """How many of so many rows, of so many bytes each, are taken out at once."""
    return max(BLOCK_BYTES // max(row_bytes, 1), -(-rows // MOST_BLOCKS), 1)


_COUNT: Final = np.array([byte.bit_count() for byte in range(256)], np.uint8)


class RowCapture:
    """Rows by their numbers. Nothing is copied when it is made. What is written before it was taken out is copied first
    (`keep`), and is what is taken out next: so little waits.

    Invariant: a bit of `_open` is set for each row that was neither taken out nor copied; all of them are at `_next` or
    behind it. `left` counts these and those that were copied.
    """

    __slots__ = ("_kept", "_next", "_open", "_read", "_stop", "left")

    def __init__(self, here: Array, read: Callable[[Array], Columns], changed: Array | None = None) -> None:
        """`here` (stop) bool: which rows there are; of these only the `changed`, as bits, where that is not None.
        `read` gives what is known of rows (n) int64."""
        self._open = np.packbits(here, bitorder="little")
        if changed is not None:
            self._open[: len(changed)] &= changed[: len(self._open)]
            self._open[len(changed) :] = 0
        self._stop = len(here)
        self._read = read
        self._next = 0
        self._kept: deque[tuple[int, Columns]] = deque()
        self.left = int(_COUNT[self._open].sum(dtype=np.int64))

    def keep(self, rows: Array) -> None:
        """These rows (n) int64, distinct, are about to change."""
        rows = rows[(rows >= self._next) & (rows < self._stop)]
        rows = rows[self._open[rows >> 3] & _bits(rows) > 0]
        if len(rows):
            self._kept.append((len(rows), self._read(rows)))
            np.bitwise_and.at(self._open, rows >> 3, ~_bits(rows))

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


# --- Which rows have changed since a capture before -------------------------------------------------------------------


MOST_BEFORE: Final = 4
"""Captures since which changes are known: what became of one is told with the next but one."""


class RowChanges:
    """Begins with the first capture: what never is captured costs nothing. `_parts[i]` has what changed between the
    capture at step `_steps[i]` and the one behind it: rows by their numbers, as bits, and the places of those that have
    gone."""

    __slots__ = ("_parts", "_steps")

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._parts: list[tuple[GrowingArray, list[Array]]] = []

    def knows(self, step: int | None) -> bool:
        """Whether all changes since the capture at that step are known."""
        return step in self._steps

    def mark(self, rows: Array) -> None:
        """These rows (n) change, or come into being."""
        if self._parts and len(rows):
            bits, least = self._parts[-1][0], (int(rows.max()) >> 3) + 1
            if least > len(bits):
                bits.grow(max(least, len(bits) * 3 // 2))
            np.bitwise_or.at(bits.array, rows >> 3, _bits(rows))

    def gone(self, places: Array) -> None:
        """These rows (n) are not here any more."""
        if self._parts and len(places):
            self._parts[-1][1].append(places)

    def captured(self, step: int, since: int | None) -> tuple[Array, Array] | None:
        """A capture at `step`: what has changed since that at `since`, which `knows` knows: rows as bits, and places of
        those that have gone; None for a capture of all. What was known of the time before that is forgotten."""
        first = len(self._steps) if since is None else self._steps.index(since)
        del self._steps[:first]
        del self._parts[:first]
        found = None
        if self._parts:
            bits: Array = np.zeros(max(len(some) for some, _ in self._parts), np.uint8)
            for some, _ in self._parts:
                bits[: len(some)] |= some.array
            gone = [places for _, some in self._parts for places in some]
            found = bits, np.unique(np.concatenate(gone)) if gone else np.zeros(0, np.int64)
        self._steps = [*self._steps, step][-MOST_BEFORE:]
        self._parts = [*self._parts, (GrowingArray(None, np.uint8), [])][-MOST_BEFORE:]
        return found


def _bits(rows: Array) -> Array:
    """The bit of each row (n) uint8 in its byte."""
    found: Array = np.left_shift(np.uint8(1), (rows & 7).astype(np.uint8))
    return found
