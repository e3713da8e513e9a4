"""The arrays of a bucket: gradients that wait, and their sum; values, pinned while they are sent, and encoded values.

Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np

from weft_kernels.blocks import CACHE_ELEMENTS
from weft_kvstore.arrays import Array, Range, Segment, bytes_of, ranges_where
from weft_kvstore.compression import Codec, SliceCodec
from weft_kvstore.wire.outbox import BufferSource

# --- Gradients that wait for the others of their step, and their sum --------------------------------------------------

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

    def replace(self, segment: Segment, first: int, stop: int) -> None:
        """These slices of a segment take the place of what lies there."""
        self.take(first, stop)
        self.put(self.narrow(segment, first, stop))

    def within(self, first: int, stop: int) -> list[Segment]:
        """What lies within a range, whole where it goes beyond; it stays."""
        low, high = self._overlapping(first, stop)
        return self.segments[low:high]

    def covered(self, first: int, stop: int) -> int:
        """Of how many slices of a range there are elements."""
        some = [one for one in self.within(first, stop) if one.elements is not None]
        return sum([min(one.stop, stop) - max(one.first, first) for one in some])

    def take(self, first: int, stop: int) -> list[Segment]:
        """Takes out what lies within a range, cut at its ends."""
        if len(self.segments) == 1 and first <= self.segments[0].first and self.segments[0].stop <= stop:
            found, self.segments = self.segments, []
            return found
        low, high = self._overlapping(first, stop)
        if low >= high:
            return []
        found = self.segments[low:high]
        rest: list[Segment] = []
        if found[0].first < first:
            rest.append(self.narrow(found[0], found[0].first, first))
            found[0] = self.narrow(found[0], first, found[0].stop)
        if found[-1].stop > stop:
            rest.append(self.narrow(found[-1], stop, found[-1].stop))
            found[-1] = self.narrow(found[-1], found[-1].first, stop)
        self.segments[low:high] = rest
        return found

    def _overlapping(self, first: int, stop: int) -> tuple[int, int]:
        """Which entries of the list overlap a range."""
        low = max(bisect_right(self.segments, first, key=_FIRST) - 1, 0)
        if low < len(self.segments) and self.segments[low].stop <= first:
            low += 1
        return low, bisect_left(self.segments, stop, key=_FIRST)

    def narrow(self, segment: Segment, first: int, stop: int) -> Segment:
        """Some slices of a segment; the elements are views."""
        if segment.elements is None or (first == segment.first and stop == segment.stop):
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
    read: while it is in the cache, the rule uses it, and no sum is written to memory."""

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
            cuts = sorted(one for one in edges if first <= one <= stop)
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


# --- Pins: slices of a block that are not written while their bytes are sent ------------------------------------------


class Block:
    """The elements of some slices; `pinned` (slices) counts the pins on each, and a slice is not written while it is
    pinned. `source` has the bytes, from `start` on. `shared`: the array is in shared memory, where peers read it;
    `original` is that array, of a copy."""

    __slots__ = ("array", "original", "pinned", "shared", "source", "start")

    def __init__(self, array: Array, source: BufferSource, start: int, slices: int, *, shared: bool = False) -> None:
        self.original: Block | None = None
        self.array = array
        self.source = source
        self.start = start
        self.shared = shared
        self.pinned = np.zeros(slices, np.int32)

    def copy(self) -> Block:
        """A copy without pins, in private memory."""
        array = self.array.copy()
        copy = Block(array, BufferSource(bytes_of(array), self.source.wrap), 0, len(self.pinned))
        copy.original = self if self.shared else self.original
        return copy


class Pin:
    """Pins `count` slices of a block from number `index` on. `first` is what its owner calls the first of them."""

    __slots__ = ("_offset", "block")

    def __init__(self, block: Block, index: int, count: int, *, first: int = 0) -> None:
        self.block = block
        self._offset = index - first
        block.pinned[index if count == 1 else slice(index, index + count)] += 1

    def release(self, first: int, count: int) -> None:
        """Unpins some that have arrived, or will not be sent."""
        index = first + self._offset
        self.block.pinned[index if count == 1 else slice(index, index + count)] -= 1


# --- The values of a bucket on a shard: one flat array, in blocks that are copied where pinned slices are written -----
# A block has whole slices of at most `BLOCK_BYTES` together: it fills a frame, and is what a copy costs where a reader
# is slower than the slots.


BLOCK_BYTES: Final = 1 << 23

MOST_CUTS: Final = 1 << 20
"""How much is remembered of how ranges of slices lie in blocks, which peers push and pull at each step: numbers of 8
bytes, `A_CUT` for each range and some for each of its slices."""

A_CUT: Final = 64


class Cut(NamedTuple):
    """Slices `low` to `high`, which lie in block `number`: the first is slice `offset` there. `bounds` (slices + 1)
    int64: where their bytes begin and end there; `elements`: where their elements are."""

    low: int
    high: int
    number: int
    offset: int
    bounds: Array
    elements: slice


class BucketValues:
    """Values (elements) whose slice i has elements `bounds[i]` to `bounds[i + 1]`. Where `changed` (slices, bool) is
    there, it is set for slices that are written."""

    __slots__ = ("_block_of", "_blocks", "_cuts", "_edges", "_remembered", "bounds", "changed", "dtype", "source")

    def __init__(self, values: Array, bounds: Array, *, in_one: bool = False, shared: bool = False) -> None:
        """`in_one`: all of it is one block, for who writes it all at once. `shared`: clients may read `values`
        where they are."""
        self.bounds = bounds
        self.changed: Array | None = None
        self.dtype: np.dtype[Any] = values.dtype
        self._cuts: dict[Range, list[Cut]] = {}
        self._remembered = 0
        self._edges = np.array([0, len(bounds) - 1]) if in_one else _edges(bounds * self.dtype.itemsize)
        self._block_of = np.repeat(np.arange(len(self._edges) - 1), np.diff(self._edges))
        self.source, itemsize = BufferSource(bytes_of(values)), self.dtype.itemsize
        starts = bounds[self._edges].tolist()
        self._blocks = [
            Block(values[start:stop], self.source, start * itemsize, slices, shared=shared)
            for (start, stop), slices in zip(pairwise(starts), np.diff(self._edges).tolist(), strict=True)
        ]

    def sections(self, first: int, stop: int) -> list[tuple[int, int, Block, int, Array]]:
        """Slices by blocks, each with the first one's index in the block, and where slices begin and end in its source:
        (slices + 1) int64 bytes."""
        found = []
        for low, high, number, index, bounds, _ in self._cuts.get((first, stop)) or self._cut(first, stop):
            block = self._blocks[number]
            found.append((low, high, block, index, bounds + block.start if block.start else bounds))
        return found

    def written(self, first: int, stop: int) -> list[tuple[int, int, Array]]:
        """The elements of slices, to be written: by blocks, each with the slices that lie in it."""
        if self.changed is not None:
            self.changed[first:stop] = True
        found = []
        for low, high, number, index, _, elements in self._cuts.get((first, stop)) or self._cut(first, stop):
            block = self._blocks[number]
            if (original := block.original) is not None and not original.pinned.any():  # Peers can read it again.
                np.copyto(original.array, block.array)
                block = self._blocks[number] = original
            if block.pinned[index] if high - low == 1 else block.pinned[index : index + high - low].any():
                block = self._blocks[number] = block.copy()
            found.append((low, high, block.array[elements]))
        return found

    def write(self, segment: Segment) -> None:
        """These are the elements of some slices."""
        origin = self.bounds[segment.first]
        for low, high, elements in self.written(segment.first, segment.stop):
            np.copyto(elements, segment.elements[self.bounds[low] - origin : self.bounds[high] - origin])

    def elements(self, first: int, stop: int) -> Iterator[tuple[int, int, Array]]:
        """The elements of slices, to be read: by blocks, each with the slices that lie in it."""
        for low, high, number, _, _, elements in self._cuts.get((first, stop)) or self._cut(first, stop):
            yield low, high, self._blocks[number].array[elements]

    def _cut(self, first: int, stop: int) -> list[Cut]:
        """How slices lie in blocks."""
        found = []
        for number in range(int(self._block_of[first]), int(self._block_of[stop - 1]) + 1):
            edge, end = int(self._edges[number]), int(self._edges[number + 1])
            low, high = max(edge, first), min(end, stop)
            elements = self.bounds[low : high + 1] - self.bounds[edge]
            some = slice(int(elements[0]), int(elements[-1]))
            found.append(Cut(low, high, number, low - edge, elements * self.dtype.itemsize, some))
        self._remembered += A_CUT + stop - first
        if self._remembered > MOST_CUTS:
            self._cuts.clear()
            self._remembered = A_CUT + stop - first
        self._cuts[first, stop] = found
        return found


def _edges(bounds: Array) -> Array:
    """The slices at which blocks begin, and where the last one ends; `bounds` in bytes."""
    edges, count = [0], len(bounds) - 1
    while edges[-1] < count:
        at = edges[-1]
        fit = int(np.searchsorted(bounds, bounds[at] + BLOCK_BYTES, side="right")) - 1
        edges.append(min(max(fit, at + 1), count))
    return np.array(edges, np.int64)


# --- The values of a bucket, or of a whole key, as they travel encoded to workers: made once for all of them ----------
# What travels     | Is encoded                                                    | With a residual
# -----------------|---------------------------------------------------------------|---------------------
# weights          | when somebody first asks for them after they have changed     | never
# merged gradients | when a step applies, whoever asks; a value that was set never | where the store says


class EncodedValues:
    """`values` are the bytes, pinned and copied as values are. `changed` (slices) bool: of which slices they are not
    those of the value; whoever writes the value sets it. `residual` (elements) is what merged gradients owe to all
    workers; None where nothing is kept."""

    __slots__ = ("_codec", "_is_merged", "changed", "residual", "values")

    def __init__(self, codec: Codec, bounds: Array, *, merged: bool) -> None:
        """`bounds` (slices + 1, int64): where slices begin, elements. `merged`: the value is a merged gradient."""
        self.residual = np.zeros(int(bounds[-1]), codec.dtype) if merged and codec.residual else None
        self._codec = SliceCodec(codec, bounds, self.residual)
        self._is_merged = merged
        self.values = BucketValues(np.empty(int(self._codec.begins[-1]), np.uint8), self._codec.begins)
        self.changed: Array = np.ones(len(bounds) - 1, np.bool_)

    def encode(self, first: int, stop: int, elements: Array | None) -> None:
        """Encodes slices: their weights, or the merged gradient of a step, once for each step; None: it has none."""
        bounds = self._codec.bounds
        for low, high, out in self.values.written(first, stop):
            some = None if elements is None else elements[bounds[low] - bounds[first] : bounds[high] - bounds[first]]
            self._codec.encode(low, high, some, out=out)
        self.changed[first:stop] = False

    def missing(self, first: int, stop: int) -> list[Range]:
        """Slices among these whose bytes are to be made."""
        return [] if self._is_merged else ranges_where(self.changed[first:stop], first)
