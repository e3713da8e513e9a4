"""Sets of numbers as runs of adjacent ones. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from weft_kvstore.arrays.array import Array

Range: TypeAlias = tuple[int, int]
"""From the first to before the second."""


class Ranges:
    """A set of numbers. Invariants: its ranges ascend, none is empty, and between two of them a number is missing."""

    __slots__ = ("_first", "_stop")

    def __init__(self) -> None:
        self._first: list[int] = []
        self._stop: list[int] = []

    def __iter__(self) -> Iterator[Range]:
        return iter(zip(self._first, self._stop, strict=True))

    def __bool__(self) -> bool:
        return bool(self._first)

    def __len__(self) -> int:
        """How many numbers."""
        return sum(self._stop) - sum(self._first)

    @property
    def span(self) -> Range:
        """From its first number to behind its last; it must have one."""
        return self._first[0], self._stop[-1]

    def overlaps(self, first: int, stop: int) -> list[Range]:
        """What it has of a range."""
        low = bisect_right(self._stop, first)
        high = bisect_left(self._first, stop)
        return [(max(self._first[at], first), min(self._stop[at], stop)) for at in range(low, high)]

    def add(self, first: int, stop: int) -> None:
        low, high = bisect_left(self._stop, first), bisect_right(self._first, stop)
        if low < high:
            first, stop = min(first, self._first[low]), max(stop, self._stop[high - 1])
        self._first[low:high], self._stop[low:high] = [first], [stop]

    def remove(self, first: int, stop: int) -> None:
        low, high = bisect_right(self._stop, first), bisect_left(self._first, stop)
        if low >= high:
            return
        left, right = (self._first[low], first), (stop, self._stop[high - 1])
        kept = [one for one in (left, right) if one[0] < one[1]]
        self._first[low:high], self._stop[low:high] = [one[0] for one in kept], [one[1] for one in kept]


def ranges_where(wanted: Array, offset: int = 0) -> list[Range]:
    """The ranges of places (n) bool that are true, numbered from `offset`."""
    count = len(wanted)
    if count <= 1:  # As small keys are: the common case costs no work on arrays.
        return [(offset, offset + 1)] if count and wanted[0] else []
    if wanted[0] and wanted.all():
        return [(offset, offset + count)]
    edges = np.flatnonzero(np.diff(np.concatenate([[False], wanted, [False]]))) + offset
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def ranges_alike(values: Array, offset: int = 0) -> list[tuple[int, int, int]]:
    """Runs of equal numbers (n): first, stop and number, places numbered from `offset`."""
    count = len(values)
    if not count:
        return []
    first = int(values[0])
    if count == 1:
        return [(offset, offset + 1, first)]
    if values[-1] == first and (values == first).all():
        return [(offset, offset + len(values), first)]
    edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    return [(a + offset, b + offset, int(values[a])) for a, b in pairwise(edges)]
