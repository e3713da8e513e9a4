"""Gradients of a bucket's steps: what waits for the others of its step, and their sum. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np

from weft_kernels.blocks import CACHE_ELEMENTS
from weft_kvstore.arrays import FEW, Array, Range, Segment, exact_sum, ranges_alike
from weft_kvstore.bucket.gate import StepGate
from weft_kvstore.bucket.steps import BucketSteps, UpdateSpec, contradiction
from weft_kvstore.description.records import Merge
from weft_kvstore.errors import PushRefusedError
from weft_kvstore.settings import STEPS_AHEAD

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


# --- What was pushed and is not applied: of a bucket's slices, or of a table, which is one slice ----------------------


MOST_RESTORED: Final = 1 << 60
"""Steps that a store may begin with: what is counted from there stays within 64 bits."""


class PendingSteps:
    """`_waiting` has, by the number of a slot and step, the gradients that came and are not applied, or that the slot
    has none: of steps that are in (`BucketSteps.arrived`), and of at most STEPS_AHEAD steps that came before the one
    before them."""

    def __init__(self, spec: UpdateSpec, bounds: Array) -> None:
        """Slice i has the elements from `bounds[i]` to before `bounds[i + 1]`."""
        self.spec = spec
        self.bounds = bounds
        self.count = len(bounds) - 1
        """How many slices."""
        self.steps = BucketSteps(spec.slots, self.count, is_sync=spec.is_sync)
        self.applied: Callable[[int, int, int, int], None] | None = None
        """Called with (slot, step, first, stop) of each slot's gradients when they are added, where somebody asks."""
        self.reached: Callable[[int, int, int], None] | None = None
        """Called with (version, first, stop) of slices that have come to a version together, where somebody asks."""
        self._waiting: dict[tuple[int, int], PendingSegments] = {}
        self._adds_early = False

    @property
    def has_waiting(self) -> bool:
        """Whether anything has come that is neither applied nor in a sum."""
        return bool(self._waiting)

    def push(self, slot: int, step: int, segments: Sequence[Segment]) -> list[Range]:
        """Stores a slot's gradients of adjacent slices, as `check` and `accept` do; most come as the next step of their
        slices. Returns the slices that may have a step complete."""
        steps, first, stop = self.steps, segments[0].first, segments[-1].stop
        index, is_sync = steps.indices.get(slot), self.spec.is_sync
        if index is not None and (index, step + 1) not in self._waiting:  # Else that step would be due with this one.
            arrived = steps.arrived[:, first:stop]
            least, greatest = extremes(arrived)
            is_next = least[index] == greatest[index] == step
            if is_next and (not is_sync or step <= min(least) + STEPS_AHEAD):  # As nearly all are.
                arrived[index] = step + 1
                pending = self._waiting.get((index, step))
                if pending is None:
                    self._waiting[index, step] = PendingSegments(self.bounds, segments)
                else:
                    pending.put(*segments)
                if self._adds_early:
                    self._add_early(index, step, first, stop)
                greatest[index] += 1
                return [(first, stop)] if not is_sync or min(greatest) > step else []
        self.check(slot, step, first, stop, pushes=True)
        accepted = [one for segment in segments for one in self.accept(slot, step, segment)]
        for first, stop in accepted if self._adds_early else ():
            self._add_early(steps.indices[slot], step, first, stop)
        return accepted

    def check(self, slot: int, step: int, first: int, stop: int, *, pushes: bool) -> None:
        """Raises PushRefusedError if a slot's gradients, or its declaration that it has none, contradict what it sent
        before, or are too many steps ahead."""
        index = self.steps.index_of(slot, self._where(slot, step, first))
        self.steps.check(index, step, first, stop, pushes=pushes, where=lambda slice_: self._where(slot, step, slice_))
        waiting = self._waiting.get((index, step))
        for segment in waiting.within(first, stop) if waiting is not None else ():
            if (segment.elements is not None) != pushes:
                where = self._where(slot, step, max(segment.first, first))
                raise PushRefusedError(f"{where}: {contradiction(before=not pushes)}")

    def accept(self, slot: int, step: int, segment: Segment) -> list[Range]:
        """Stores what `check` has let pass: gradients, whose memory is the bucket's from then on, or that there are
        none. Returns the slices that may have a step complete. What has arrived before changes nothing, so that each
        push counts once."""
        index = self.steps.indices[slot]
        accepted, early = self.steps.accept(index, step, segment.first, segment.stop)
        if accepted or early:
            pending = self._waiting.setdefault((index, step), PendingSegments(self.bounds))
            for first, stop in (*accepted, *early):
                pending.take(first, stop)  # What comes early again takes the place of what came first: it is the same.
                pending.put(pending.part(segment, first, stop))
        due = accepted
        while due and (waiting := self._waiting.get((index, step := step + 1))) is not None:
            come = [(max(one.first, a), min(one.stop, b)) for a, b in due for one in waiting.within(a, b)]
            due = [one for a, b in come for one in self.steps.accept(index, step, a, b)[0]]
        return accepted

    def replace(self, slot: int) -> None:
        """A newer incarnation fills the slot: what the old one pushed and is not added is forgotten."""
        index = self.steps.indices.get(slot)
        if index is not None:
            for of, step in [key for key in self._waiting if key[0] == index]:
                pending = self._waiting[of, step]
                pending.segments = [one for one in pending.segments if self.steps.through[index, one.first] > step]
                if not pending.segments:
                    del self._waiting[of, step]
            self.steps.forget(index)

    def check_restored(self, slot: int, version: int, first: int, stop: int) -> None:
        """Raises PushRefusedError where slices cannot be brought back at a version."""
        detail = ""
        if self.spec.gate is not None:
            detail = "a store with commit cannot be restored: its steps begin at 0"
        elif version >= MOST_RESTORED:
            detail = "a store is restored at a step below 2^60"
        elif not self.is_untouched(first, stop):
            detail = "it cannot be restored: a step of it has begun; restore before anybody pushes"
        if detail:
            raise PushRefusedError(f"{self._where(slot, version, first)}: {detail}")

    def is_untouched(self, first: int, stop: int) -> bool:
        """Whether nobody has said anything of any step of these slices."""
        waiting = [one for one in self._waiting.values() if one.within(first, stop)]
        return not waiting and bool((self.steps.arrived[:, first:stop] == self.steps.base[first:stop]).all())

    def _add_early(self, index: int, step: int, first: int, stop: int) -> None:
        """Where it `_adds_early`: some slices of a slot's gradients have come."""

    def _order(self, step: int) -> Sequence[int]:
        """The slots, by their numbers, in the order in which their gradients of a step are added."""
        if self.spec.merge is Merge.ARRIVAL:
            return [index for index, of in self._waiting if of == step]
        return range(len(self.spec.slots))

    def _is_added(self, index: int, step: int, segments: Sequence[Segment]) -> None:
        for first, stop, elements in segments:
            self.steps.pushed[index, first:stop] = elements is not None
            if self.applied is not None and elements is not None:
                self.applied(self.spec.slots[index], step, first, stop)

    def _where(self, slot: int, step: int, slice_: int) -> str:
        return f"slot {slot}, {self.spec.named(slice_)}, step {step}"


def extremes(numbers: Array) -> tuple[list[int], list[int]]:
    """The least and the greatest of each row of int64 numbers (rows, n)."""
    if numbers.size <= FEW:
        rows = numbers.tolist()
        return [*map(min, rows)], [*map(max, rows)]
    return np.minimum.reduce(numbers, axis=1).tolist(), np.maximum.reduce(numbers, axis=1).tolist()


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
