"""Elements of slices that wait for something, to be taken by ranges of slices. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from weft_kvstore.arrays.array import Array


class Laid(NamedTuple):
    """Slices `first` to before `stop`, and their elements; None where there is nothing to be had for them.

    Where the elements do not lie in one array, `parts` are slices that follow each other, each with its own; `elements`
    are then those of the first part.
    """

    first: int
    stop: int
    elements: Array | None
    parts: tuple[Laid, ...] = ()


def laid_apart(parts: Sequence[Laid]) -> Laid:
    """Slices that follow each other, as one."""
    if len(parts) == 1:
        return parts[0]
    return Laid(parts[0].first, parts[-1].stop, parts[0].elements, tuple(parts))


def laid_as(laid: Laid, dtype: np.dtype[Any]) -> Laid:
    """The same with elements of another type, which are new arrays where they are not of it already."""
    if laid.elements is None:
        return laid
    parts = tuple(laid_as(part, dtype) for part in laid.parts)
    elements = parts[0].elements if parts else laid.elements.astype(dtype, copy=False)
    return Laid(laid.first, laid.stop, elements, parts)


class Shelf:
    """Invariant: what lies here does not overlap. `bounds[i]` is the element at which slice i begins."""

    __slots__ = ("_bounds", "_first", "_laid")

    def __init__(self, bounds: Array) -> None:
        self._bounds = bounds
        self._first: list[int] = []
        self._laid: list[Laid] = []

    def __bool__(self) -> bool:
        return bool(self._laid)

    def __len__(self) -> int:
        """How many slices lie here."""
        return sum(one.stop - one.first for one in self._laid)

    @property
    def nbytes(self) -> int:
        return sum(one.elements.nbytes for one in self._laid if one.elements is not None)

    def put(self, laid: Laid) -> None:
        for part in laid.parts:
            self.put(part)
        if laid.parts:
            return
        at = bisect_left(self._first, laid.first)
        self._first.insert(at, laid.first)
        self._laid.insert(at, laid)

    def within(self, first: int, stop: int) -> list[Laid]:
        """What lies within a range, whole where it goes beyond; it stays."""
        low, high = self._span(first, stop)
        return self._laid[low:high]

    def take(self, first: int, stop: int) -> list[Laid]:
        """Takes out what lies within a range, cut at its ends."""
        low, high = self._span(first, stop)
        if low >= high:
            return []
        found = self._laid[low:high]
        kept: list[Laid] = []
        if found[0].first < first:
            kept.append(self.part(found[0], found[0].first, first))
            found[0] = self.part(found[0], first, found[0].stop)
        if found[-1].stop > stop:
            kept.append(self.part(found[-1], stop, found[-1].stop))
            found[-1] = self.part(found[-1], found[-1].first, stop)
        self._laid[low:high], self._first[low:high] = kept, [one.first for one in kept]
        return found

    def _span(self, first: int, stop: int) -> tuple[int, int]:
        """Where in the list that lies which overlaps a range."""
        low = max(bisect_right(self._first, first) - 1, 0)
        if low < len(self._laid) and self._laid[low].stop <= first:
            low += 1
        return low, bisect_left(self._first, stop)

    def part(self, laid: Laid, first: int, stop: int) -> Laid:
        """Some of its slices; the elements are views."""
        if laid.parts:
            found = [one for one in laid.parts if first < one.stop and one.first < stop]
            return laid_apart([self.part(one, max(one.first, first), min(one.stop, stop)) for one in found])
        if laid.elements is None:
            return Laid(first, stop, None)
        origin = self._bounds[laid.first]
        return Laid(first, stop, laid.elements[self._bounds[first] - origin : self._bounds[stop] - origin])
