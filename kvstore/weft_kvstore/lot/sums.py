"""The sums of a lot's steps that are being merged. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from weft_kvstore.arrays.array import Array
from weft_kvstore.arrays.ranges import Range
from weft_kvstore.arrays.shelf import Laid, Shelf

LATE_ELEMENTS: Final = 1 << 17
"""What is added late has so many elements at least: an update of each piece costs more than to add small ones."""


def sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """In what gradients are added whose mean is wanted: a mean of numbers that the type has is one that it has, and
    their sum may be none. Sums of int64 are Python's numbers: slow, and exact."""
    if dtype.kind in "iu":
        return np.dtype(np.int64) if dtype.itemsize < 8 else np.dtype(np.object_)
    return np.dtype(np.float64) if dtype.itemsize < 8 else np.dtype(np.longdouble)


class Sum(NamedTuple):
    """A sum: the elements of `total`, and where `addend` is there (elements of the same slices) that added to them."""

    total: Laid
    addend: Array | None = None


class LotSums:
    """Of each slice one sum, that of its next step. `contributors` counts the gradients in it, by slice.

    Invariant: what lies in `_addends`, and is not added yet, has a total of the same slice.
    """

    __slots__ = ("_addends", "_bounds", "_totals", "contributors")

    def __init__(self, slices: int, bounds: Array) -> None:
        self._bounds = bounds
        self._totals = Shelf(bounds)
        self._addends = Shelf(bounds)
        self.contributors = np.zeros(slices, np.int64)

    def add(self, laid: Laid, *, last: bool = False) -> None:
        """Adds gradients, from the left to the right: sum + gradient. Their memory is taken over, and written unless it
        is read-only. What is the `last` is added by who takes the sum, and crosses memory once less."""
        if laid.elements is None:
            return
        self._settle(laid.first, laid.stop)
        if last:
            self._put_off(laid)
        else:
            self._add(laid)
        self.contributors[laid.first : laid.stop] += 1

    def _put_off(self, laid: Laid) -> None:
        now: list[Laid] = []
        for part in laid.parts or (laid,):
            at = part.first
            for total in self._totals.within(part.first, part.stop):
                low, high = max(total.first, part.first), min(total.stop, part.stop)
                if at < low:
                    now.append(self._totals.part(part, at, low))
                over = self._addends.part(part, low, high)
                if self._bounds[high] - self._bounds[low] < LATE_ELEMENTS:
                    now.append(over)
                else:
                    self._addends.put(over)
                at = high
            if at < part.stop:
                now.append(self._totals.part(part, at, part.stop))
        if now:
            self._add(Laid(now[0].first, now[-1].stop, now[0].elements, tuple(now)))

    def _settle(self, first: int, stop: int) -> None:
        for addend in self._addends.take(first, stop) if self._addends else ():
            self._add(addend)

    def _add(self, laid: Laid) -> None:
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

    def take(self, first: int, stop: int) -> Iterator[Sum]:
        """The sums of these slices, where there are any; they begin anew."""
        self.contributors[first:stop] = 0
        totals = self._totals.take(first, stop)
        addends = self._addends.take(first, stop) if self._addends else []
        return _sums(self._totals, totals, addends) if addends else map(Sum, totals)

    def look(self, first: int, stop: int) -> list[Laid]:
        """The sums of these slices, to be written; they stay."""
        self._settle(first, stop)
        found = [_writable(laid) for laid in self._totals.take(first, stop)]
        for laid in found:
            self._totals.put(laid)
        return found


def _sums(shelf: Shelf, totals: list[Laid], addends: list[Laid]) -> Iterator[Sum]:
    """Totals with what is to be added to them, cut where one of both ends."""
    coming = iter(addends)
    addend = next(coming, None)
    for total in totals:
        at = total.first
        while addend is not None and addend.first < total.stop:
            if at < addend.first:
                yield Sum(shelf.part(total, at, addend.first))
            at = min(addend.stop, total.stop)
            low = max(addend.first, total.first)
            yield Sum(shelf.part(total, low, at), shelf.part(addend, low, at).elements)
            if addend.stop > total.stop:
                break
            addend = next(coming, None)
        if at < total.stop:
            yield Sum(shelf.part(total, at, total.stop))


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
