"""The sums of a lot's steps that are being merged. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft_kvstore.arrays.array import Array
from weft_kvstore.arrays.ranges import Range
from weft_kvstore.arrays.shelf import Laid, Shelf


def sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """In what gradients are added whose mean is wanted: a mean of numbers that the type has is one that it has, and
    their sum may be none."""
    if dtype.kind in "iu":
        return np.dtype(np.int64)
    return np.dtype(np.float32) if dtype.itemsize < 4 else dtype


class LotSums:
    """Of each slice one sum, that of its next step. `contributors` counts the gradients in it, by slice."""

    __slots__ = ("_bounds", "_totals", "contributors")

    def __init__(self, slices: int, bounds: Array) -> None:
        self._bounds = bounds
        self._totals = Shelf(bounds)
        self.contributors = np.zeros(slices, np.int64)

    def add(self, laid: Laid) -> None:
        """Adds gradients, from the left to the right: sum + gradient. Their memory is taken over, and written unless it
        is read-only."""
        if laid.elements is None:
            return
        fresh = _Fresh(self._bounds, laid)
        for part in laid.parts or (laid,):
            at = part.first
            for total in self._totals.take(part.first, part.stop):
                if at < total.first:
                    fresh.keep(self._totals.part(part, at, total.first))
                elements = self._totals.part(part, total.first, total.stop).elements
                assert total.elements is not None
                assert elements is not None
                if total.elements.flags.writeable:
                    np.add(total.elements, elements, out=total.elements)
                    fresh.keep(total)
                else:
                    np.add(total.elements, elements, out=fresh.room(total.first, total.stop))
                at = total.stop
            if at < part.stop:
                fresh.keep(self._totals.part(part, at, part.stop))
        for one in fresh.sums():
            self._totals.put(one)
        self.contributors[laid.first : laid.stop] += 1

    def take(self, first: int, stop: int) -> list[Laid]:
        """The sums of these slices, where there are any; they begin anew."""
        self.contributors[first:stop] = 0
        return self._totals.take(first, stop)

    def look(self, first: int, stop: int) -> list[Laid]:
        """The sums of these slices, to be written; they stay."""
        found = [_writable(laid) for laid in self._totals.take(first, stop)]
        for laid in found:
            self._totals.put(laid)
        return found


class _Fresh:
    """New sums of the slices of `laid`, in one array: what is read-only is added up there. Slices of which nothing is
    kept that follow each other are one sum then, however many pieces they came in."""

    __slots__ = ("_array", "_bounds", "_kept", "_laid", "_made")

    def __init__(self, bounds: Array, laid: Laid) -> None:
        self._bounds = bounds
        self._laid = laid
        self._array: Array | None = None
        self._kept: list[Laid] = []
        self._made: list[Range] = []

    def keep(self, laid: Laid) -> None:
        """Slices whose sum has an array already."""
        self._kept.append(laid)

    def room(self, first: int, stop: int) -> Array:
        """Where a sum is to be written."""
        if self._array is None:
            assert self._laid.elements is not None
            count = int(self._bounds[self._laid.stop] - self._bounds[self._laid.first])
            self._array = np.empty(count, self._laid.elements.dtype)
        if self._made and self._made[-1][1] == first:
            self._made[-1] = self._made[-1][0], stop
        else:
            self._made.append((first, stop))
        return self._of(first, stop)

    def sums(self) -> list[Laid]:
        return self._kept + [Laid(first, stop, self._of(first, stop)) for first, stop in self._made]

    def _of(self, first: int, stop: int) -> Array:
        assert self._array is not None
        origin = self._bounds[self._laid.first]
        return self._array[self._bounds[first] - origin : self._bounds[stop] - origin]


def _writable(laid: Laid) -> Laid:
    if laid.elements is None or laid.elements.flags.writeable:
        return laid
    return Laid(laid.first, laid.stop, laid.elements.copy())
