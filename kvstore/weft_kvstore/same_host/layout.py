"""Where keys, slices and spare parts lie in an arena that a client and its shards share. Pure."""

from __future__ import annotations

import mmap
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np

from weft_kvstore.arrays import Array, Range
from weft_kvstore.sharding import BucketKind, BucketPart, Routing

# --- Where each key's places lie in an arena: a pure function of the keys' lengths ------------------------------------
# Offsets are in bytes.


ALIGNMENT: Final = 64
"""Bytes: a cache line, so that no two keys share one, and enough for every dtype and vector instruction."""

NO_PLACE: Final = -1
"""Offset of a key without a place; its payloads travel as bytes."""

Offsets: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Layout:
    """`gradients` and `values` (keys) are offsets, `NO_PLACE` where a key of length 0 has none.

    Places of one kind are one region from a page on, in the order of the keys: keys whose lengths are whole cache lines
    lie without a gap. `spare` is what is left for payloads without a fixed length. `nbytes` is all of it.
    """

    nbytes: int
    gradients: Offsets
    values: Offsets
    spare: range


def lay_out(nbytes: Sequence[int], *, spare_bytes: int = 0) -> Layout:
    """Places for keys of these lengths, bytes."""
    lengths = np.asarray(nbytes, np.int64).reshape(-1)
    rounded = -(-lengths // ALIGNMENT) * ALIGNMENT
    starts = np.cumsum(rounded) - rounded
    region = _whole(int(rounded.sum()), mmap.PAGESIZE)
    gradients, values = (np.where(lengths > 0, starts + begin, NO_PLACE) for begin in (0, region))
    spare = range(2 * region, 2 * region + _whole(spare_bytes, mmap.PAGESIZE))
    return Layout(spare.stop, gradients, values, spare)


def _whole(nbytes: int, unit: int) -> int:
    return -(-nbytes // unit) * unit


# --- How a client's arena is cut up, and where in it each slice has its place: a pure function of the description -----


MAX_STAGE_BYTES: Final = 64 << 20
"""Of the stage of one shard: what a slot may be ahead of the others before its gradients travel as bytes."""

MAX_WINDOW_BYTES: Final = 32 << 20
"""Of the window of one shard: what may be under way."""

MIN_STAGE_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True, eq=False)
class SharedLayout(Layout):
    """Keys are those of plain buckets, by their places. For each shard, `stages` is where the client lays payloads for
    it, and `windows` where the shard lays those of its answers."""

    stages: tuple[range, ...]
    windows: tuple[range, ...]


class BucketPlaces:
    """Where slices of a bucket on a shard lie among the places of one kind."""

    __slots__ = ("_bounds", "_firsts", "_offsets")

    def __init__(self, part: BucketPart, offsets: Array) -> None:
        """`offsets` (slices) int64 in the arena."""
        lengths = np.diff(part.bounds)
        breaks = np.flatnonzero(offsets[1:] != offsets[:-1] + lengths[:-1]) + 1
        self._firsts: list[int] = [0, *breaks.tolist()]
        self._offsets: list[int] = offsets[self._firsts].tolist()
        self._bounds: list[int] = part.bounds.tolist()

    def pieces(self, first: int, stop: int) -> list[tuple[Range, Range]]:
        """Slices `first` to before `stop`, cut where they do not lie one behind the other: slices and bytes of each."""
        found: list[tuple[Range, Range]] = []
        number, bounds = bisect_right(self._firsts, first) - 1, self._bounds
        while first < stop:
            begin = self._firsts[number]
            end = min(stop, self._firsts[number + 1]) if number + 1 < len(self._firsts) else stop
            shift = self._offsets[number] - bounds[begin]
            found.append(((first, end), (bounds[first] + shift, bounds[end] + shift)))
            first, number = end, number + 1
        return found


@dataclass(frozen=True, slots=True, eq=False)
class ShardPlaces:
    """What one shard uses of the arenas of its clients: `gradients` and `values` by number of a plain bucket."""

    nbytes: int
    window: range
    gradients: Mapping[int, BucketPlaces]
    values: Mapping[int, BucketPlaces]


def shard_places(routing: Routing, shard: int) -> ShardPlaces:
    """Of one shard of this routing."""
    shared = shared_layout(routing)
    buckets = [bucket for bucket in routing.buckets if bucket.kind is not BucketKind.TABLE and shard in bucket.parts]
    gradients, values = (
        {bucket.number: _bucket_places(routing, bucket.parts[shard], starts) for bucket in buckets}
        for starts in (shared.gradients, shared.values)
    )
    return ShardPlaces(shared.nbytes, shared.windows[shard], gradients, values)


def shared_layout(routing: Routing) -> SharedLayout:
    """The layout that client and shards of this routing work out alike."""
    order = _in_order(routing)
    shards = range(routing.shards)
    stages = [_clamped(_bytes_on(routing, shard), MAX_STAGE_BYTES) for shard in shards]
    windows = [_clamped(_bytes_on(routing, shard), MAX_WINDOW_BYTES) for shard in shards]
    made = lay_out([routing.cuts[place].nbytes for place in order], spare_bytes=sum(stages) + sum(windows))
    gradients, values = (np.full(len(routing.cuts), NO_PLACE, np.int64) for _ in range(2))
    gradients[order], values[order] = made.gradients, made.values
    starts = np.cumsum([made.spare.start, *stages, *windows]).tolist()
    rooms = tuple(range(start, stop) for start, stop in pairwise(starts))
    return SharedLayout(made.nbytes, gradients, values, made.spare, rooms[: len(stages)], rooms[len(stages) :])


def _bucket_places(routing: Routing, part: BucketPart, starts: Array) -> BucketPlaces:
    """Of a plain bucket on a shard; `starts` (keys) int64 are the keys' places of one kind."""
    steps = np.array([cut.step_bytes for cut in routing.cuts], np.int64)
    return BucketPlaces(part, starts[part.places] + part.indices * steps[part.places])


def _in_order(routing: Routing) -> list[int]:
    """The keys of plain buckets so that what a shard has of a bucket lies in as few pieces as can be: a key that is
    cut must be whole for its user, so the small ones around it lie on the side of the shard that has them too."""
    order: list[int] = []
    for bucket in routing.buckets:
        if bucket.kind is BucketKind.TABLE:
            continue
        small: list[int] = []
        last = -1
        for place in bucket.keys:
            runs = routing.runs[place]
            if len(runs) < 2:
                small.append(place)
                continue
            shards = sorted(runs, key=lambda shard, runs=runs: runs[shard].start)  # type: ignore[misc]
            order += _between(routing, small, last, shards[0])
            order.append(place)
            small, last = [], shards[-1]
        order += _between(routing, small, last, -1)
    return order


def _between(routing: Routing, small: Sequence[int], left: int, right: int) -> list[int]:
    """Keys of one shard each: those of shard `left` first, those of shard `right` last."""

    def side(place: int) -> tuple[int, int]:
        shard = next(iter(routing.runs[place]), -1)
        return (0 if shard == left else 2 if shard == right else 1), shard

    return sorted(small, key=side)


def _bytes_on(routing: Routing, shard: int) -> int:
    parts = sum(int(bucket.parts[shard].bounds[-1]) for bucket in routing.buckets if shard in bucket.parts)
    return parts + sum(table.bytes_on(shard) for table in routing.tables.values())


def _clamped(nbytes: int, most: int) -> int:
    return -(-min(max(nbytes, MIN_STAGE_BYTES), most) // ALIGNMENT) * ALIGNMENT


# --- The part of an arena for payloads without a fixed length: ids and rows of tables, compressed gradients -----------


class SpareSpace:
    """Gives out pieces of a range of offsets, the lowest that fits first; pure.

    Against a ring: pieces come back in any order, since shards acknowledge apart, and one slow shard must not hold up
    the others' pieces. The lowest first keeps a steady run in the same pages, which are in the cache and mapped.
    """

    def __init__(self, room: range) -> None:
        self._starts: list[int] = [room.start] if room else []
        self._ends: list[int] = [room.stop] if room else []
        self._taken: dict[int, int] = {}

    def take(self, nbytes: int) -> int | None:
        """The offset of a piece of at least this length, or None if no gap is long enough."""
        if nbytes <= 0:
            raise ValueError(f"a piece of {nbytes} bytes")
        length = -(-nbytes // ALIGNMENT) * ALIGNMENT
        gaps = enumerate(zip(self._starts, self._ends, strict=True))
        place = next((number for number, (start, end) in gaps if end - start >= length), None)
        if place is None:
            return None
        start = self._starts[place]
        self._starts[place] = start + length
        if start + length == self._ends[place]:
            del self._starts[place], self._ends[place]
        self._taken[start] = length
        return start

    def give(self, offset: int) -> None:
        """A piece comes back. Raises ValueError for an offset that no piece has."""
        length = self._taken.pop(offset, None)
        if length is None:
            raise ValueError(f"no piece was taken at {offset}")
        end = offset + length
        place = bisect_left(self._starts, offset)
        if place < len(self._starts) and self._starts[place] == end:
            end = self._ends[place]
            del self._starts[place], self._ends[place]
        if place > 0 and self._ends[place - 1] == offset:
            self._ends[place - 1] = end
        else:
            self._starts.insert(place, offset)
            self._ends.insert(place, end)
