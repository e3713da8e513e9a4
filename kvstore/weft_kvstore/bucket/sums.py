"""Gradients of a bucket's steps: what waits to be added, the sums, and the gate where these are measured. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from weft_kernels.blocks import CACHE_ELEMENTS
from weft_kvstore.arrays import Array, Segment, exact_sum, ranges_where, segments_as_one
from weft_kvstore.bucket.gate import StepGate


class PendingSegments:
    """Invariant: what lies here does not overlap. `bounds[i]` is the element at which slice i begins."""

    __slots__ = ("_bounds", "_first", "segments")

    def __init__(self, bounds: Array, first: Segment | None = None) -> None:
        self._bounds = bounds
        parts = () if first is None else first.parts or (first,)
        self._first = [one.first for one in parts]
        self.segments = [*parts]
        """In the order of their slices."""

    def __bool__(self) -> bool:
        return bool(self.segments)

    def __len__(self) -> int:
        """How many slices lie here."""
        return sum(one.stop - one.first for one in self.segments)

    def put(self, segment: Segment) -> None:
        for part in segment.parts:
            self.put(part)
        if segment.parts:
            return
        at = bisect_left(self._first, segment.first)
        self._first.insert(at, segment.first)
        self.segments.insert(at, segment)

    def within(self, first: int, stop: int) -> list[Segment]:
        """What lies within a range, whole where it goes beyond; it stays."""
        low, high = self._span(first, stop)
        return self.segments[low:high]

    def take(self, first: int, stop: int) -> list[Segment]:
        """Takes out what lies within a range, cut at its ends."""
        if len(self.segments) == 1 and first <= self._first[0] and self.segments[0].stop <= stop:
            found, self.segments, self._first = self.segments, [], []
            return found
        low, high = self._span(first, stop)
        if low >= high:
            return []
        found = self.segments[low:high]
        kept: list[Segment] = []
        if found[0].first < first:
            kept.append(self.part(found[0], found[0].first, first))
            found[0] = self.part(found[0], first, found[0].stop)
        if found[-1].stop > stop:
            kept.append(self.part(found[-1], stop, found[-1].stop))
            found[-1] = self.part(found[-1], found[-1].first, stop)
        self.segments[low:high], self._first[low:high] = kept, [one.first for one in kept]
        return found

    def _span(self, first: int, stop: int) -> tuple[int, int]:
        """Where in the list that lies which overlaps a range."""
        low = max(bisect_right(self._first, first) - 1, 0)
        if low < len(self.segments) and self.segments[low].stop <= first:
            low += 1
        return low, bisect_left(self._first, stop)

    def part(self, segment: Segment, first: int, stop: int) -> Segment:
        """Some of its slices; the elements are views."""
        if segment.parts:
            found = [one for one in segment.parts if first < one.stop and one.first < stop]
            return segments_as_one([self.part(one, max(one.first, first), min(one.stop, stop)) for one in found])
        if segment.elements is None:
            return Segment(first, stop, None)
        origin = self._bounds[segment.first]
        return Segment(first, stop, segment.elements[self._bounds[first] - origin : self._bounds[stop] - origin])


class WaitingGradients:
    """Gradients that are in and not added, by contributing slot (its number) and step. `by_slot`: a step's slots are
    added one after the other, so that a sum is the same bits for any order of arrival."""

    __slots__ = ("_bounds", "_by_slot", "segments")

    def __init__(self, bounds: Array, *, by_slot: bool) -> None:
        self._bounds = bounds
        self._by_slot = by_slot
        self.segments: dict[tuple[int, int], PendingSegments] = {}

    def put(self, place: int, step: int, segment: Segment) -> None:
        pending = self.segments.get((place, step))
        if pending is None:
            self.segments[place, step] = PendingSegments(self._bounds, segment)
        else:
            pending.put(segment)

    def holds(self, step: int) -> bool:
        """Whether anything of a step may be added now that the step before it is applied."""
        return bool(self.segments) and ((0, step) in self.segments if self._by_slot else bool(self._of(step)))

    def take(self, step: int, merged: int, first: int, stop: int) -> list[tuple[int, Segment]]:
        """Takes out what is added next at these slices, of which `merged` slots are merged in that step."""
        found: list[tuple[int, Segment]] = []
        for key in ((merged, step),) if self._by_slot else self._of(step):
            pending = self.segments.get(key)
            if pending is None:
                continue
            taken = pending.take(first, stop)
            found += [(key[0], segment) for segment in (_runs(taken) if len(taken) > 1 else taken)]
            if not pending.segments:
                del self.segments[key]
        return found

    def forget(self, place: int) -> None:
        """What a slot has here never came."""
        for key in [key for key in self.segments if key[0] == place]:
            del self.segments[key]

    def _of(self, step: int) -> list[tuple[int, int]]:
        return [key for key in self.segments if key[1] == step]


def _runs(segments: list[Segment]) -> Iterator[Segment]:
    """Segments with elements that continue one another as one."""
    run: list[Segment] = []
    for segment in segments:
        if run and (segment.first != run[-1].stop or segment.elements is None or run[-1].elements is None):
            yield segments_as_one(run)
            run = []
        run.append(segment)
    if run:
        yield segments_as_one(run)


ADDED_ELEMENTS: Final = 2 * CACHE_ELEMENTS
"""What is added before the rule has it: more of it leaves the cache, less costs more calls."""


def sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """In what gradients are added whose mean is wanted: a mean of numbers that the type has is one that it has, and
    their sum may be none. Sums of int64 are Python's numbers: slow, and exact."""
    if dtype.kind in "iu":
        return np.dtype(np.int64) if dtype.itemsize < 8 else np.dtype(np.object_)
    return np.dtype(np.float64) if dtype.itemsize < 8 else np.dtype(np.longdouble)


class Gradient:
    """The sum of two layers of segments, each in order, of slices `first` to before `stop`. It is added where it is
    read: while a part of it is in the cache, the rule uses it, and no sum is written to memory."""

    __slots__ = ("_layers", "array", "count", "dtype", "first", "stop")

    def __init__(self, bounds: Array, first: int, stop: int, *layers: Sequence[Segment]) -> None:
        self.first, self.stop = first, stop
        origin = int(bounds[first])
        self.count = int(bounds[stop]) - origin
        self.array: Array | None = None
        """All of it, where it lies in one array already."""
        layers = tuple(filter(None, layers))
        if len(layers) == 1 and len(layers[0]) == 1 and not layers[0][0].parts:
            self.array = layers[0][0].elements
            assert self.array is not None
            self.dtype = self.array.dtype
            return
        self._layers: list[tuple[list[int], list[Array]]] = []
        for layer in layers:
            parts = [part for segment in layer for part in segment.parts or (segment,)]
            starts = [int(bounds[part.first]) - origin for part in parts]
            self._layers.append((starts, [part.elements for part in parts if part.elements is not None]))
        self.dtype = self._layers[0][1][0].dtype

    def read(self, begin: int, end: int, out: Array) -> Array:
        """Elements `begin` to `end`: in `out`, or a view where they lie in one array."""
        if self.array is not None:
            return self.array if end - begin == self.count else self.array[begin:end]
        layers = [_within(*layer, begin, end) for layer in self._layers]
        layers = [parts for parts in layers if parts]
        if all(len(parts) == 1 and parts[0][:2] == (begin, end) for parts in layers):
            arrays = [parts[0][2] for parts in layers]
            return arrays[0] if len(arrays) == 1 else np.add(arrays[0], arrays[1], out=out[: end - begin])
        edges = sorted({edge for parts in layers for low, high, _ in parts for edge in (low, high)})
        for low, high in pairwise(edges):
            arrays = []
            for parts in layers:
                while parts and parts[0][1] <= low:
                    parts.pop(0)
                if parts and parts[0][0] <= low:
                    arrays.append(parts[0][2][low - parts[0][0] : high - parts[0][0]])
            if len(arrays) == 2:
                np.add(arrays[0], arrays[1], out=out[low - begin : high - begin])
            else:
                out[low - begin : high - begin] = arrays[0]
        return out[: end - begin]

    def total(self) -> Array:
        """All of it as an array that may be written; that of the first layer takes the second where it can."""
        if self.array is not None:
            return self.array if self.array.flags.writeable else self.array.copy()
        _, arrays = self._layers[0]
        is_one = len(arrays[0]) == self.count and arrays[0].flags.writeable
        return self.read(0, self.count, arrays[0] if is_one else np.empty(self.count, self.dtype))


def _within(starts: list[int], arrays: list[Array], begin: int, end: int) -> list[tuple[int, int, Array]]:
    """The parts of a layer that have some of these elements: from which to before which, and their array."""
    found = []
    for at in range(max(bisect_right(starts, begin) - 1, 0), len(starts)):
        start, array = starts[at], arrays[at]
        if start >= end:
            break
        low, high = max(start, begin), min(start + len(array), end)
        if low < high:
            found.append((low, high, array if high - low == len(array) else array[low - start : high - start]))
    return found


class BucketSums:
    """Of each slice one sum, that of its next step: `_totals`, and beside it `_last`, the last gradients of a step,
    which are added where the sum is read. `contributors` counts the gradients in it, by slice."""

    __slots__ = ("_bounds", "_last", "_totals", "contributors")

    def __init__(self, slices: int, bounds: Array) -> None:
        self._bounds = bounds
        self._totals = PendingSegments(bounds)
        self._last = PendingSegments(bounds)
        self.contributors = np.zeros(slices, np.int64)

    def add(self, segment: Segment, *, last: bool = False) -> None:
        """Adds gradients, from the left to the right: sum + gradient. Their memory is taken over, and written unless it
        is read-only. `last`: no more are added in that step."""
        first, stop, elements, _ = segment
        if elements is None:
            return
        self.contributors[first if stop - first == 1 else slice(first, stop)] += 1
        if last:
            self._last.put(segment)
        else:
            before = self._totals.take(first, stop) if self._totals.segments else ()
            if before:
                segment = Segment(first, stop, Gradient(self._bounds, first, stop, before, (segment,)).total())
            self._totals.put(segment)

    def take(self, first: int, stop: int, more: Segment | None = None) -> Gradient:
        """The sum of slices that all have one; it begins anew. `more` are the last gradients of
        their step, where they are not among them."""
        self.contributors[first if stop - first == 1 else slice(first, stop)] = 0
        totals = self._totals.take(first, stop) if self._totals.segments else ()
        last = (more,) if more is not None else self._last.take(first, stop) if self._last.segments else ()
        if totals and last and len(totals) == len(last) == 1 and not last[0].parts:
            total, addend = totals[0].elements, last[0].elements
            assert total is not None
            assert addend is not None
            if len(addend) == len(total) <= ADDED_ELEMENTS and total.flags.writeable:  # It stays in the cache.
                np.add(total, addend, out=total)
                last = ()
        return Gradient(self._bounds, first, stop, totals, last)

    def drop(self, first: int, stop: int) -> None:
        """The step of these slices is skipped."""
        self._totals.take(first, stop)
        self._last.take(first, stop)
        self.contributors[first:stop] = 0

    def made(self, first: int, stop: int) -> list[Segment]:
        """The sums of these slices, to be written; they stay."""
        found = []
        for low, high in ranges_where(self.contributors[first:stop] > 0, first):
            layers = self._totals.take(low, high), self._last.take(low, high)
            found.append(Segment(low, high, Gradient(self._bounds, low, high, *layers).total()))
            self._totals.put(found[-1])
        return found


# --- Slices of a bucket at the gate of their shard: what is merged of a step is measured, and goes on as agreed on ----


_NEVER: Final = -1


class BucketGate:
    """Invariant: `_told` (slices) is the last step that the gate was told of, and each is told once. `sums` are of the
    slices, which begin at `bounds` (elements). `is_summed`: what they amount to counts; a mean does not. `unscaled`:
    they arrive divided by the loss scale."""

    __slots__ = ("_bounds", "_gate", "_is_summed", "_sums", "_told", "_unscaled")

    def __init__(self, gate: StepGate, sums: BucketSums, bounds: Array, *, is_summed: bool, unscaled: bool) -> None:
        self._gate = gate
        self._is_summed = is_summed
        self._unscaled = unscaled
        self._sums = sums
        self._bounds = bounds
        self._told = np.full(len(bounds) - 1, _NEVER, np.int64)

    def passes(self, step: int, first: int, stop: int) -> bool:
        """Whether the slots have agreed on a step: the sums of its slices are clipped then, or dropped where the step
        is skipped. The first time what they amount to is measured."""
        for low, high in ranges_where(self._told[first:stop] != step, first):
            squares = self._measured(low, high) if self._is_summed else 0
            self._told[low:high] = step
            self._gate.hold(step, squares, high - low)
        committed = self._gate.committed(step)
        if committed is None:
            return False
        if committed.factor is None:
            self._sums.drop(first, stop)
        elif self._is_summed and committed.factor != 1.0:
            _multiply(self._sums.made(first, stop), committed.factor)
        return True

    def _measured(self, first: int, stop: int) -> int | None:
        """The exact sum of the slices' sums of squares, each in float64; None where that is not finite. What was
        multiplied by the loss scale is divided by it."""
        sums = self._sums.made(first, stop)
        scale = self._gate.loss_scale.scale
        if scale != 1.0 and not self._unscaled:
            _multiply(sums, 1.0 / scale)
        found: list[Array] = []
        for low, high, elements, _ in sums:
            assert elements is not None
            for begin, end in pairwise((self._bounds[low : high + 1] - self._bounds[low]).tolist()):
                found.append(np.square(elements[begin:end], dtype=np.float64).sum(keepdims=True))
        return exact_sum(np.concatenate(found)) if found else 0


def _multiply(sums: list[Segment], factor: float) -> None:
    for segment in sums:
        assert segment.elements is not None
        np.multiply(segment.elements, segment.elements.dtype.type(factor), out=segment.elements)
