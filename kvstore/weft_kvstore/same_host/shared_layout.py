"""How a client's arena is cut up, and where in it each slice has its place: a pure function of the description."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from weft_kvstore.arrays.array import Array
from weft_kvstore.arrays.ranges import Range
from weft_kvstore.same_host.layout import ALIGNMENT, Layout, lay_out
from weft_kvstore.sharding.lots import LotKind, LotPart
from weft_kvstore.sharding.routing import Routing

MAX_STAGE_BYTES: Final = 64 << 20
"""Of the stage of one shard: what a slot may be ahead of the others before its gradients travel as bytes."""

MAX_WINDOW_BYTES: Final = 32 << 20
"""Of the window of one shard: what may be under way."""

MIN_STAGE_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True, eq=False)
class SharedLayout:
    """`layout` has one place for the gradient and one for the value of each key of a plain lot, by key's place.

    For each shard, `stages` is where the client lays payloads for it, and `windows` where the shard lays those of its
    answers.
    """

    layout: Layout
    stages: tuple[range, ...]
    windows: tuple[range, ...]

    @property
    def nbytes(self) -> int:
        return self.layout.nbytes


class LotPlaces:
    """Where slices of a lot on a shard lie among the places of one kind."""

    __slots__ = ("_bounds", "_firsts", "_offsets")

    def __init__(self, part: LotPart, offsets: Array) -> None:
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
    """What one shard uses of the arenas of its clients: `gradients` and `values` by number of a plain lot."""

    nbytes: int
    window: range
    gradients: Mapping[int, LotPlaces]
    values: Mapping[int, LotPlaces]


def shard_places(routing: Routing, shard: int) -> ShardPlaces:
    """Of one shard of this routing."""
    shared = shared_layout(routing)
    lots = [lot for lot in routing.lots if lot.kind is not LotKind.TABLE and shard in lot.parts]
    gradients, values = (
        {lot.number: _lot_places(routing, lot.parts[shard], starts[0]) for lot in lots}
        for starts in (shared.layout.gradients, shared.layout.values)
    )
    return ShardPlaces(shared.nbytes, shared.windows[shard], gradients, values)


def shared_layout(routing: Routing) -> SharedLayout:
    """The layout that client and shards of this routing work out alike."""
    order = _in_order(routing)
    shards = range(routing.shards)
    stages = [_clamped(_bytes_on(routing, shard), MAX_STAGE_BYTES) for shard in shards]
    windows = [_clamped(_bytes_on(routing, shard), MAX_WINDOW_BYTES) for shard in shards]
    made = lay_out(
        [routing.cuts[place].nbytes for place in order],
        gradient_places=1,
        value_places=1,
        spare_bytes=sum(stages) + sum(windows),
    )
    gradients, values = (np.full((1, len(routing.cuts)), -1, np.int64) for _ in range(2))
    gradients[:, order], values[:, order] = made.gradients, made.values
    starts = np.cumsum([made.spare.start, *stages, *windows]).tolist()
    rooms = tuple(range(start, stop) for start, stop in pairwise(starts))
    layout = Layout(made.nbytes, gradients, values, made.spare)
    return SharedLayout(layout, rooms[: len(stages)], rooms[len(stages) :])


def _lot_places(routing: Routing, part: LotPart, starts: Array) -> LotPlaces:
    """Of a plain lot on a shard; `starts` (keys) int64 are the keys' places of one kind."""
    steps = np.array([cut.step_bytes for cut in routing.cuts], np.int64)
    return LotPlaces(part, starts[part.places] + part.indices * steps[part.places])


def _in_order(routing: Routing) -> list[int]:
    """The keys of plain lots so that what a shard has of a lot lies in as few pieces as can be: a key that is cut must
    be whole for its user, so the small ones around it lie on the side of the shard that has them too."""
    order: list[int] = []
    for lot in routing.lots:
        if lot.kind is LotKind.TABLE:
            continue
        small: list[int] = []
        last = -1
        for place in lot.keys:
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
    parts = sum(int(lot.parts[shard].bounds[-1]) for lot in routing.lots if shard in lot.parts)
    return parts + sum(table.bytes_on(shard) for table in routing.tables.values())


def _clamped(nbytes: int, most: int) -> int:
    return -(-min(max(nbytes, MIN_STAGE_BYTES), most) // ALIGNMENT) * ALIGNMENT
