"""Gradients of a bucket's steps: what waits for the others of its step, and their sum. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np

from weft_kernels.blocks import CACHE_ELEMENTS
from weft_kvstore.arrays import Array, Segment, exact_sum, ranges_alike
from weft_kvstore.bucket.gate import StepGate

ADDED: Final[Array] = np.empty(0)
"""In place of elements that are in the sum, which a later slot has."""

_FIRST: Final = itemgetter(0)
"""A segment's first slice, by which segments are in order."""


class PendingSegments:
    """Invariant: what lies here does not overlap. `bounds[i]` is the element at which slice i begins."""

    __slots__ = ("_bounds", "segments")

    def __init__(self, bounds: Array, segments: Sequence[Segment] = ()) -> None:
        self._bounds = bounds
        self.segments = [*segments]
        """In the order of their slices."""

    def __len__(self) -> int:
        """How many slices lie here."""
        return sum(one.stop - one.first for one in self.segments)

    def put(self, *segments: Segment) -> None:
        """Some that follow each other."""
        at = bisect_left(self.segments, segments[0].first, key=_FIRST)
        self.segments[at:at] = segments

    def within(self, first: int, stop: int) -> list[Segment]:
        """What lies within a range, whole where it goes beyond; it stays."""
        low, high = self._span(first, stop)
        return self.segments[low:high]

    def take(self, first: int, stop: int) -> list[Segment]:
        """Takes out what lies within a range, cut at its ends."""
        if len(self.segments) == 1 and first <= self.segments[0].first and self.segments[0].stop <= stop:
            found, self.segments = self.segments, []
            return found
        low, high = self._span(first, stop)
        if low >= high:
            return []
        found = self.segments[low:high]
        rest: list[Segment] = []
        if found[0].first < first:
            rest.append(self.part(found[0], found[0].first, first))
            found[0] = self.part(found[0], first, found[0].stop)
        if found[-1].stop > stop:
            rest.append(self.part(found[-1], stop, found[-1].stop))
            found[-1] = self.part(found[-1], found[-1].first, stop)
        self.segments[low:high] = rest
        return found

    def _span(self, first: int, stop: int) -> tuple[int, int]:
        """Where in the list that lies which overlaps a range."""
        low = max(bisect_right(self.segments, first, key=_FIRST) - 1, 0)
        if low < len(self.segments) and self.segments[low].stop <= first:
            low += 1
        return low, bisect_left(self.segments, stop, key=_FIRST)

    def part(self, segment: Segment, first: int, stop: int) -> Segment:
        """Some of its slices; the elements are views."""
        if segment.elements is None or segment.elements is ADDED or (first == segment.first and stop == segment.stop):
            return Segment(first, stop, segment.elements)
        origin = self._bounds[segment.first]
        return Segment(first, stop, segment.elements[self._bounds[first] - origin : self._bounds[stop] - origin])


ADDED_ELEMENTS: Final = CACHE_ELEMENTS
"""What is added before the rule has it: more of it leaves the cache, less costs more calls."""


def sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """In what gradients are added whose mean is wanted: a mean of numbers that the type has is one that it has, and
    their sum may be none. Sums of int64 are Python's numbers: slow, and exact."""
    if dtype.kind in "iu":
        return np.dtype(np.int64) if dtype.itemsize < 8 else np.dtype(np.object_)
    return np.dtype(np.float64) if dtype.itemsize < 8 else np.dtype(np.longdouble)


class Gradient:
    """The sum, from the left to the right, of `layers`: of each slot that has gradients its segments, in order. It is
    of slices `first` to before `stop`, each of which some layer has; segments may go beyond. It is added where it is
    read: while a part of it is in the cache, the rule uses it, and no sum is written to memory."""

    __slots__ = ("_arrays", "_starts", "array", "count", "dtype", "first", "stop")

    def __init__(self, bounds: Array, first: int, stop: int, layers: Sequence[Sequence[Segment]]) -> None:
        self.first, self.stop = first, stop
        origin = int(bounds[first])
        self.count = int(bounds[stop]) - origin
        one = layers[0][0]
        self.dtype: np.dtype[Any] = one.elements.dtype
        self.array: Array | None = (
            one.elements if len(layers) == 1 and one.first == first and one.stop == stop else None
        )
        """All of it, where it lies in one array already."""
        if self.array is not None:
            return
        edges = {first, stop}
        for layer in layers:
            for one in layer:
                edges.update(one[:2])
        cuts, starts = [first, stop], [0, self.count]
        if len(edges) > 2:
            cuts = sorted(edges)
            cuts = cuts[bisect_left(cuts, first) : bisect_right(cuts, stop)]
            starts = (bounds[cuts] - origin).tolist()
        self._starts = starts
        """Where the elements begin that are the sum of the same arrays, and where the last of them end."""
        self._arrays: list[list[tuple[int, Any]]] = [[] for _ in starts[1:]]
        """These arrays, each with the element at which it begins."""
        for layer in layers:
            at = 0
            for one in layer:
                while cuts[at] < one.first:
                    at += 1
                start = starts[at] if one.first >= first else int(bounds[one.first]) - origin
                while cuts[at] < one.stop and at < len(self._arrays):
                    self._arrays[at].append((start, one.elements))
                    at += 1

    def read(self, begin: int, end: int, out: Array) -> Array:
        """Elements `begin` to `end`: in `out`, which has as many, or a view where they lie in one array."""
        if self.array is not None:
            return self.array[begin:end]
        starts, low = self._starts, begin
        at = bisect_right(starts, begin) - 1
        while low < end:
            arrays, high = self._arrays[at], min(starts[at + 1], end)
            start, total = arrays[0]
            total, is_all = total[low - start : high - start], high - low == end - begin
            if is_all and len(arrays) == 1:
                return total  # type: ignore[no-any-return]  # it is an array
            some = out if is_all else out[low - begin : high - begin]
            for start, other in arrays[1:]:
                total = np.add(total, other[low - start : high - start], out=some)
            if len(arrays) == 1:
                some[...] = total
            low, at = high, at + 1
        return out

    def total(self) -> Array:
        """All of it as an array that may be written; the first one takes the others where it can."""
        if self.array is not None:
            return self.array if self.array.flags.writeable else self.array.copy()
        first: Array = self._arrays[0][0][1]
        is_taken = first.flags.writeable and len(first) == self.count and len(self._arrays) == 1
        out = first if is_taken else np.empty(self.count, self.dtype)
        for begin in range(0, self.count, ADDED_ELEMENTS):
            some = out[begin : begin + ADDED_ELEMENTS]
            found = self.read(begin, begin + len(some), some)
            if found is not some:
                np.copyto(some, found)
        return out


class SliceSum(NamedTuple):
    """What a step has of some slices: the sum of the gradients of so many slots; None where nobody has any."""

    first: int
    stop: int
    gradient: Gradient | None
    contributors: int


# --- Slices of a bucket at the gate of their shard: the sum of a step is measured, and goes on as agreed on -----------


class GatedSums:
    """Sums of slices, which begin at `bounds` (elements), of a step that is measured and not committed. `step` (slices)
    is the last one that was measured of each.

    `is_summed`: the squares of the sums count; those of a mean do not. `unscaled`: gradients arrive divided by the loss
    scale."""

    def __init__(self, gate: StepGate, bounds: Array, *, is_summed: bool, unscaled: bool) -> None:
        self._gate = gate
        self._is_summed = is_summed
        self._unscaled = unscaled
        self._bounds = bounds
        self._sums = PendingSegments(bounds)
        self._contributors = np.zeros(len(bounds) - 1, np.int64)
        self.step = np.full(len(bounds) - 1, -1, np.int64)

    def measure(self, step: int, one: SliceSum) -> None:
        """Keeps a sum, and tells the gate the exact sum of its slices' sums of squares, each in float64; None where
        that is not finite. What was multiplied by the loss scale is divided by it."""
        first, stop, gradient, self._contributors[first:stop] = one
        squares: int | None = 0
        if gradient is not None:
            total, scale = gradient.total(), self._gate.loss_scale.scale
            self._sums.put(Segment(first, stop, total))
            if self._is_summed:
                if scale != 1.0 and not self._unscaled:
                    np.multiply(total, total.dtype.type(1.0 / scale), out=total)
                edges = (self._bounds[first : stop + 1] - self._bounds[first]).tolist()
                each = [np.square(total[low:high], dtype=np.float64).sum() for low, high in pairwise(edges)]
                squares = exact_sum(np.array(each))
        self.step[first:stop] = step
        self._gate.hold(step, squares, stop - first)

    def take(self, step: int, first: int, stop: int) -> list[SliceSum] | None:
        """The sums of slices: clipped, or dropped where the step is skipped; None where it is not committed."""
        committed = self._gate.committed(step)
        if committed is None:
            return None
        found = []
        for low, high, count in ranges_alike(self._contributors[first:stop], first):
            sums = self._sums.take(low, high) if count else []
            if committed.factor is None:
                sums = []
            elif self._is_summed and committed.factor != 1.0:
                for _, _, total in sums:
                    assert total is not None
                    np.multiply(total, total.dtype.type(committed.factor), out=total)
            gradient = Gradient(self._bounds, low, high, [sums]) if sums else None
            found.append(SliceSum(low, high, gradient, count))
        return found
