"""Where payloads lie in an arena that a client and its shards share, and how either side lays and reads them. Pure."""

from __future__ import annotations

import mmap
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import is_
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from weft_kvstore.arrays import Array, Buffer, Range
from weft_kvstore.errors import StoreError
from weft_kvstore.sharding import BucketKind, BucketPart, Routing
from weft_kvstore.wire.codec import ProtocolError

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


class OwnPlaces:
    """Where a shard has its own values of plain buckets, if it lends them: by number of a bucket, `starts` are where
    its slices begin in `nbytes` bytes of memory."""

    def __init__(self, routing: Routing, shard: int) -> None:
        self._bounds = {
            bucket.number: bucket.parts[shard].bounds
            for bucket in routing.buckets
            if bucket.kind is not BucketKind.TABLE and shard in bucket.parts
        }
        self.starts: dict[int, int] = {}
        self.nbytes = 0
        for number, bounds in self._bounds.items():
            self.starts[number] = self.nbytes
            self.nbytes += _whole(int(bounds[-1]), mmap.PAGESIZE)

    def place(self, bucket: int, first: int, count: int) -> Range:
        """The bytes of adjacent slices. Raises ProtocolError for slices that the shard has not."""
        bounds = self._bounds.get(bucket)
        if bounds is None or not 0 <= first < first + count < len(bounds):
            raise ProtocolError(f"Values.runs: slices {first} to {first + count - 1} of bucket {bucket} cannot be lent")
        start = self.starts[bucket]
        return start + int(bounds[first]), start + int(bounds[first + count])


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


# --- Bytes of a client's arena that are read where they lie -----------------------------------------------------------


class Bytes(Protocol):
    def bytes_at(self, offset: int, nbytes: int) -> Array:
        """Bytes of an arena, to be written. Raises StoreError for bytes that it has not."""


class Memory(Bytes, Protocol):
    """An arena as a core sees it."""

    nbytes: int


class _Hold:
    """What a view of an arena belongs to. That nobody can read a frame's bytes any more is known by nothing but that
    no array over them is left: sums, pending segments and rules need not count who still has a part."""

    __slots__ = ("__array_interface__", "_bytes", "_let_go")

    def __init__(self, memory: Memory, let_go: Callable[[], None]) -> None:
        self._bytes = memory.bytes_at(0, memory.nbytes)
        self._let_go = let_go
        found = self._bytes.__array_interface__
        self.__array_interface__: dict[str, Any] = {**found, "data": (found["data"][0], True)}

    def __del__(self) -> None:
        self._let_go()


def held(memory: Memory, let_go: Callable[[], None]) -> Array:
    """All of an arena, uint8, read-only. When the last array over any part of it is gone, `let_go` is called, on
    whatever thread that happens."""
    return np.asarray(_Hold(memory, let_go))


# --- The arena of a connection's client, as its shard uses it ---------------------------------------------------------


LEAST_SHARED_BYTES: Final = 16 << 10
"""A shorter payload travels as bytes: that costs no more."""


def _laid(memory: Bytes, space: SpareSpace, parts: Sequence[Buffer], nbytes: int) -> int | None:
    """Copies parts into a space, one behind the other; where they are, or None where there is no room."""
    offset = space.take(nbytes) if nbytes >= LEAST_SHARED_BYTES else None
    if offset is None:
        return None
    room, at = memory.bytes_at(offset, nbytes), 0
    for part in parts:
        view = np.frombuffer(part, np.uint8)
        room[at : at + len(view)] = view
        at += len(view)
    return offset


class Lent(Bytes, Protocol):
    """Memory of a shard that others may map and read."""

    nbytes: int
    fd: int

    def close(self) -> None:
        """Lends it to nobody any more."""


class Arenas(Protocol):
    """Where clients of this host bring their arenas, as the shard's core sees it."""

    name: bytes

    def expect(self, most_bytes: int, lent: Lent | None = None) -> bytes:
        """A ticket for one arena of at most so many bytes; whoever brings it gets what is `lent`."""

    def forget(self, ticket: bytes) -> None:
        """The link that the ticket was for is lost."""

    def arena(self, ticket: bytes) -> Memory | None:
        """What was brought for the ticket and is still there."""


class PeerMemory:
    """Payloads of answers are laid in the shard's window; a piece of it is taken until the frame is acknowledged."""

    __slots__ = ("_window", "lends", "memory", "places")

    def __init__(self, memory: Memory, places: ShardPlaces, *, lends: bool = False) -> None:
        """`lends`: the client has mapped the shard's own values."""
        self.lends = lends
        whole = places.nbytes <= memory.nbytes
        self.memory = memory
        self.places: Mapping[int, BucketPlaces] = places.values if whole else {}
        """Of values, by bucket; none where the arena is too short."""
        self._window = SpareSpace(places.window if whole else range(0))

    def hold(self, let_go: Callable[[], None]) -> Array:
        """All of it, to be read: see `held`."""
        return held(self.memory, let_go)

    def lay(self, parts: Sequence[Buffer], nbytes: int) -> int | None:
        """Copies parts into the window, one behind the other; where they are, or None where there is no room."""
        return _laid(self.memory, self._window, parts, nbytes)

    def put(self, bucket: int, first: int, stop: int, parts: Sequence[Buffer]) -> None:
        """Copies the values of slices to the places of their keys."""
        source = np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), np.uint8)
        at = 0
        for _, (start, end) in self.places[bucket].pieces(first, stop):
            self.memory.bytes_at(start, end - start)[:] = source[at : at + end - start]
            at += end - start

    def laid(self, offset: int, nbytes: int) -> bytes:
        """A copy of what was laid there."""
        return self.memory.bytes_at(offset, nbytes).tobytes()

    def values(self, bucket: int, first: int, stop: int) -> bytes:
        """A copy of the values that slices have in the places of their keys."""
        pieces = [place for _, place in self.places[bucket].pieces(first, stop)]
        return b"".join([self.memory.bytes_at(start, end - start).tobytes() for start, end in pieces])

    def give(self, offset: int) -> None:
        """The client has read what was laid there."""
        self._window.give(offset)


def placed(memory: Array, place: Range) -> Array:
    """Bytes of an arena. Raises ProtocolError for those that it has not."""
    if not 0 <= place[0] <= place[1] <= len(memory):
        raise ProtocolError(f"bytes {place[0]} to {place[1]} of an arena that has {len(memory)}")
    return memory[place[0] : place[1]]


# --- The arena of a client as its link to one shard uses it -----------------------------------------------------------


class GivenArrays(Bytes, Protocol):
    """Arrays in the arena that the store has given out, by key's place, and the rest of it."""

    gradients: dict[int, Array]
    values: dict[int, Array]
    stages: list[SpareSpace]


def are_given(given: Mapping[int, Array], places: Sequence[int], arrays: Sequence[Array]) -> bool:
    """Whether all of these arrays are those that were given out for their keys."""
    return bool(given) and all(map(is_, map(given.get, places), arrays))


class LinkMemory:
    """Payloads for one shard are laid in its stage; a piece of it is taken until the shard reads it no more."""

    __slots__ = ("_memory", "_own", "_places", "_stage")

    def __init__(
        self, memory: GivenArrays, shard: int, own: Bytes | None = None, places: OwnPlaces | None = None
    ) -> None:
        """`own`: the shard's values, where it lends them, which lie at `places`."""
        self._memory = memory
        self._stage = memory.stages[shard]
        self._own = own
        self._places = places

    def lay(self, parts: Sequence[Buffer], nbytes: int) -> int | None:
        """Copies parts into the stage, one behind the other; where they are, or None where there is no room."""
        return _laid(self._memory, self._stage, parts, nbytes)

    def give(self, offset: int) -> None:
        """The shard has read what was laid there."""
        self._stage.give(offset)

    def lent(self, bucket: int, first: int, count: int, nbytes: int) -> memoryview:
        """Values of adjacent slices where the shard has them: they stay as they are until they are acknowledged. Raises
        ProtocolError for what the shard does not lend."""
        if self._own is None or self._places is None:
            raise ProtocolError("Values.lent: the shard has lent nothing")
        start, stop = self._places.place(bucket, first, count)
        if stop - start != nbytes:
            raise ProtocolError(f"Values.nbytes: {nbytes}, slices from {first} of bucket {bucket} have {stop - start}")
        try:
            return memoryview(self._own.bytes_at(start, nbytes))  # type: ignore[arg-type]  # an array is a buffer
        except StoreError as error:
            raise ProtocolError(f"Values.lent: {error}") from error

    def payload(self, offset: int, nbytes: int) -> memoryview:
        """What the shard has laid for this client. Raises ProtocolError for bytes that the arena has not."""
        try:
            return memoryview(self._memory.bytes_at(offset, nbytes))  # type: ignore[arg-type]
        except StoreError as error:
            raise ProtocolError(f"Values.at: {error}") from error
