"""Gradients of a bucket's steps: which is added next, their sums, and the gate where these are measured. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from weft_graph.program import Update
from weft_kvstore.arrays import Array, PendingSegments, Range, Ranges, Segment, exact_sum, ranges_where
from weft_kvstore.bucket.gate import StepGate
from weft_kvstore.bucket.update import BucketSpec

# --- Gradients that are in and not merged, and which of them is added next --------------------------------------------


class MergeOrder(Protocol):
    """Elements by contributing slot (its number) and step. `bounds` of a bucket are those of its pending segments;
    `waiting` is what there is, in each one's own way."""

    waiting: dict[Any, Any]

    def put(self, place: int, step: int, segment: Segment) -> None: ...

    def is_next(self, place: int, step: int, merged: int) -> bool:
        """Whether what comes of a slot is added at once where `merged` slots are merged in that step."""

    def holds(self, step: int) -> bool:
        """Whether anything of a step may be added now that the step before it is applied."""

    def has_all(self, step: int, merged: int, first: int, stop: int) -> bool:
        """Whether `next` finds something for each of these slices."""

    def next(self, step: int, merged: int, first: int, stop: int) -> list[tuple[int, Segment]]:
        """Takes out what is to be added next at these slices, of which `merged` slots are merged in that step."""

    def forget(self, place: int) -> None:
        """What a slot has here never came."""


class SlotOrder:
    """The slots one after the other, so that a sum is the same bits for any order of arrival."""

    def __init__(self, bounds: Array) -> None:
        self._bounds = bounds
        self.waiting: dict[tuple[int, int], PendingSegments] = {}

    def put(self, place: int, step: int, segment: Segment) -> None:
        pending = self.waiting.get((place, step))
        if pending is None:
            pending = self.waiting[place, step] = PendingSegments(self._bounds)
        pending.put(segment)

    def is_next(self, place: int, step: int, merged: int) -> bool:
        return place == merged

    def holds(self, step: int) -> bool:
        return (0, step) in self.waiting

    def has_all(self, step: int, merged: int, first: int, stop: int) -> bool:
        return (merged, step) in self.waiting and len(self.waiting[merged, step]) == stop - first

    def next(self, step: int, merged: int, first: int, stop: int) -> list[tuple[int, Segment]]:
        pending = self.waiting.get((merged, step))
        if pending is None:
            return []
        found = pending.take(first, stop)
        if not pending:
            del self.waiting[merged, step]
        return [(merged, segment) for segment in found]

    def forget(self, place: int) -> None:
        for key in [key for key in self.waiting if key[0] == place]:
            del self.waiting[key]


class ArrivalOrder:
    """In the order in which they came. Invariant: no pending segments is empty."""

    def __init__(self, bounds: Array) -> None:
        self._bounds = bounds
        self.waiting: dict[int, list[tuple[int, PendingSegments]]] = {}

    def put(self, place: int, step: int, segment: Segment) -> None:
        pending = PendingSegments(self._bounds)
        pending.put(segment)
        self.waiting.setdefault(step, []).append((place, pending))

    def is_next(self, place: int, step: int, merged: int) -> bool:
        return step not in self.waiting

    def holds(self, step: int) -> bool:
        return step in self.waiting

    def has_all(self, step: int, merged: int, first: int, stop: int) -> bool:
        return sum(len(pending) for _, pending in self.waiting.get(step, ())) >= stop - first

    def next(self, step: int, merged: int, first: int, stop: int) -> list[tuple[int, Segment]]:
        found: list[tuple[int, Segment]] = []
        left = Ranges()
        left.add(first, stop)
        for place, pending in self.waiting.get(step, ()):
            taken = [segment for low, high in list(left) for segment in pending.take(low, high)]
            for segment in taken:  # Of each slice what came first; others may have another first one.
                left.remove(segment.first, segment.stop)
                found.append((place, segment))
            if not left:
                break
        if found:
            self._tidy(step)
        return found

    def forget(self, place: int) -> None:
        for step in list(self.waiting):
            self.waiting[step] = [one for one in self.waiting[step] if one[0] != place]
            self._tidy(step)

    def _tidy(self, step: int) -> None:
        self.waiting[step] = [one for one in self.waiting[step] if one[1]]
        if not self.waiting[step]:
            del self.waiting[step]


# --- The sums of a bucket's steps that are being merged ---------------------------------------------------------------


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

    total: Segment
    addend: Array | None = None


class Total(NamedTuple):
    """The sum of a step of all slices of `total`, as `Sum`, with how many gradients are in it."""

    total: Segment
    addend: Array | None
    contributors: int


class BucketSums:
    """Of each slice one sum, that of its next step. `contributors` counts the gradients in it, by slice.

    Invariant: what lies in `_addends`, and is not added yet, has a total of the same slice.
    """

    __slots__ = ("_addends", "_bounds", "_totals", "contributors")

    def __init__(self, slices: int, bounds: Array) -> None:
        self._bounds = bounds
        self._totals = PendingSegments(bounds)
        self._addends = PendingSegments(bounds)
        self.contributors = np.zeros(slices, np.int64)

    def add(self, segment: Segment, *, last: bool = False) -> None:
        """Adds gradients, from the left to the right: sum + gradient. Their memory is taken over, and written unless it
        is read-only. What is the `last` is added by who takes the sum, and crosses memory once less."""
        if segment.elements is None:
            return
        if self._addends.segments:
            self._settle(segment.first, segment.stop)
        if not self._totals.segments and not segment.parts:
            self._totals.put(segment)
        elif last and self._bounds[segment.stop] - self._bounds[segment.first] >= LATE_ELEMENTS:
            self._put_off(segment)
        else:
            total = None if segment.parts else self._totals.elements_of(segment.first, segment.stop)
            if total is not None and total.flags.writeable:
                np.add(total, segment.elements, out=total)
            else:
                self._add(segment)
        self.contributors[
            segment.first if segment.stop - segment.first == 1 else slice(segment.first, segment.stop)
        ] += 1

    def closed(self, segment: Segment, *, late: bool) -> Total | None:
        """The sum of slices with the last gradients of their step, which is taken out; `late`: whoever takes it may add
        these. None, and nothing has changed, where it is not one sum that lies in one piece."""
        first, stop, elements, parts = segment
        if elements is None or parts or self._addends.segments:
            return None
        if not self._totals.segments:
            return Total(segment, None, 1)
        before = self.contributors[first:stop]
        count = int(before[0])
        total = self._totals.elements_of(first, stop)
        if total is None or (stop - first > 1 and not (before == count).all()):
            return None
        self._totals.take(first, stop)
        before[:] = 0
        if late and len(elements) >= LATE_ELEMENTS:
            return Total(Segment(first, stop, total), elements, count + 1)
        total = np.add(total, elements, out=total if total.flags.writeable else None)
        return Total(Segment(first, stop, total), None, count + 1)

    def _put_off(self, segment: Segment) -> None:
        now: list[Segment] = []
        for part in segment.parts or (segment,):
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
            self._add(Segment(now[0].first, now[-1].stop, now[0].elements, tuple(now)))

    def _settle(self, first: int, stop: int) -> None:
        for addend in self._addends.take(first, stop) if self._addends else ():
            self._add(addend)

    def _add(self, segment: Segment) -> None:
        fresh = _Fresh(self._bounds, segment)
        for part in segment.parts or (segment,):
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
        self.contributors[first if stop - first == 1 else slice(first, stop)] = 0
        totals = self._totals.take(first, stop)
        addends = self._addends.take(first, stop) if self._addends.segments else []
        return _sums(self._totals, totals, addends) if addends else map(Sum, totals)

    def look(self, first: int, stop: int) -> list[Segment]:
        """The sums of these slices, to be written; they stay."""
        self._settle(first, stop)
        found = [_writable(segment) for segment in self._totals.take(first, stop)]
        for segment in found:
            self._totals.put(segment)
        return found


def _sums(pending: PendingSegments, totals: list[Segment], addends: list[Segment]) -> Iterator[Sum]:
    """Totals with what is to be added to them, cut where one of both ends."""
    coming = iter(addends)
    addend = next(coming, None)
    for total in totals:
        at = total.first
        while addend is not None and addend.first < total.stop:
            if at < addend.first:
                yield Sum(pending.part(total, at, addend.first))
            at = min(addend.stop, total.stop)
            low = max(addend.first, total.first)
            yield Sum(pending.part(total, low, at), pending.part(addend, low, at).elements)
            if addend.stop > total.stop:
                break
            addend = next(coming, None)
        if at < total.stop:
            yield Sum(pending.part(total, at, total.stop))


class _Fresh:
    """New sums of a segment's slices, in one array: what is read-only is added up there. Slices of which nothing is
    kept that follow each other are one sum then, however many pieces they came in."""

    __slots__ = ("_array", "_bounds", "_kept", "_laid", "_made")

    def __init__(self, bounds: Array, segment: Segment) -> None:
        self._bounds = bounds
        self._laid = segment
        self._array: Array | None = None
        self._kept: list[Segment] = []
        self._made: list[Range] = []

    def keep(self, segment: Segment) -> None:
        """Slices whose sum has an array already."""
        self._kept.append(segment)

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

    def sums(self) -> list[Segment]:
        return self._kept + [Segment(first, stop, self._of(first, stop)) for first, stop in self._made]

    def _of(self, first: int, stop: int) -> Array:
        assert self._array is not None
        origin = self._bounds[self._laid.first]
        return self._array[self._bounds[first] - origin : self._bounds[stop] - origin]


def _writable(segment: Segment) -> Segment:
    if segment.elements is None or segment.elements.flags.writeable:
        return segment
    return Segment(segment.first, segment.stop, segment.elements.copy())


# --- Slices of a bucket at the gate of their shard: what is merged of a step is measured, and goes on as agreed on ----


_NEVER: Final = -1


class BucketGate:
    """Invariant: `_told` (slices) is the last step that the gate was told of, and each is told once. `sums` are of the
    slices, which begin at `bounds` (elements)."""

    __slots__ = ("_bounds", "_gate", "_is_summed", "_sums", "_told", "_unscaled")

    def __init__(self, gate: StepGate, spec: BucketSpec, sums: BucketSums, bounds: Array) -> None:
        self._gate = gate
        self._is_summed = spec.update is not Update.MEAN
        self._unscaled = spec.unscaled
        self._sums = sums
        self._bounds = bounds
        self._told = np.full(len(spec.part), _NEVER, np.int64)

    def passes(self, step: int, first: int, stop: int) -> bool:
        """Whether the slots have agreed on a step: the sums of its slices are clipped then, or dropped where the step
        is skipped. The first time what they amount to is measured."""
        for low, high in ranges_where(self._told[first:stop] != step, first):
            squares = self._measured(low, high) if self._is_summed else 0
            self._told[low:high] = step
            self._gate.hold(step, squares, high - low)
        verdict = self._gate.verdict(step)
        if verdict is None:
            return False
        if verdict.factor is None:
            self._sums.take(first, stop)
        elif self._is_summed and verdict.factor != 1.0:
            _multiply(self._sums.look(first, stop), verdict.factor)
        return True

    def _measured(self, first: int, stop: int) -> int | None:
        """The exact sum of the slices' sums of squares, each in float64; None where that is not finite. What was
        multiplied by the loss scale is divided by it."""
        sums = self._sums.look(first, stop)
        if self._gate.scale != 1.0 and not self._unscaled:
            _multiply(sums, 1.0 / self._gate.scale)
        found: list[Array] = []
        for segment in sums:
            assert segment.elements is not None
            for low, high in self._slices(segment):
                found.append(np.square(segment.elements[low:high], dtype=np.float64).sum(keepdims=True))
        return exact_sum(np.concatenate(found)) if found else 0

    def _slices(self, segment: Segment) -> Iterator[Range]:
        """Where its slices begin and end among its elements."""
        edges = (self._bounds[segment.first : segment.stop + 1] - self._bounds[segment.first]).tolist()
        return pairwise(edges)


def _multiply(sums: list[Segment], factor: float) -> None:
    for segment in sums:
        assert segment.elements is not None
        np.multiply(segment.elements, segment.elements.dtype.type(factor), out=segment.elements)
