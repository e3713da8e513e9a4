"""Runs of slices that some keys have on a shard: their bytes as they are sent, and where pulled ones go. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import itemgetter
from typing import Any, Final

import numpy as np

from weft_kvstore.arrays import Array, Buffer
from weft_kvstore.compression.slices import SliceCodec
from weft_kvstore.wire.outbox import OneBuffer, Source

# --- A run of slices that some keys of a call have on a shard ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """What a run has of a key: bytes `start` to `stop` of the value of the key at `position` in the call, from its
    slice `first` on; `whole` where that is all of it."""

    position: int
    first: int
    start: int
    stop: int
    whole: bool


@dataclass(frozen=True, slots=True, eq=False)
class PlanRun:
    """Adjacent slices of what a shard has of a bucket: run `number` of a plan, whose slices are numbered from `begin`.

    Slice `first + i` has bytes `bounds[i]` to `bounds[i + 1]` of the run, and priority `priorities[i]`; where all have
    one, it is `priority` and they are None. `parts` are what its keys have there, one behind the other; part i begins
    at byte `starts[i]`, and the last one ends at the last of `starts`. Where there are several, `pick` takes their
    arrays, in order, from those of the call; `partial` are the numbers of parts that are not whole.

    Part i begins at slice `part_slices[i]` of the run, and the last one ends at the last of them. `pushed` and
    `pulled`: what its gradients, and its values, may be encoded with; None as they are.
    """

    number: int
    bucket: int
    first: int
    count: int
    begin: int
    bounds: Array
    priority: int
    priorities: Array | None
    parts: tuple[Part, ...]
    starts: tuple[int, ...]
    partial: tuple[int, ...]
    pick: Callable[[Sequence[Array]], Sequence[Array]]
    part_slices: tuple[int, ...]
    pushed: SliceCodec | None
    pulled: SliceCodec | None

    @property
    def stop(self) -> int:
        return self.first + self.count


# --- The bytes of a run over the arrays of some keys, without a look at each array before it is sent ------------------


class JoinedArrays:
    """Parts one behind the other: C-contiguous arrays, or views of some of their bytes. Part i has the run's bytes
    `starts[i]` to `starts[i + 1]`."""

    __slots__ = ("_parts", "_starts")

    def __init__(self, parts: list[Any], starts: Sequence[int]) -> None:
        self._parts = parts
        self._starts = starts

    def cut(self, start: int, stop: int) -> Sequence[Buffer]:
        first = bisect_right(self._starts, start) - 1
        last = bisect_left(self._starts, stop) - 1
        if first >= last:
            return (self._some(first, start, stop),)
        found = self._parts[first : last + 1]
        if start > self._starts[first]:
            found[0] = self._some(first, start, self._starts[first + 1])
        if stop < self._starts[last + 1]:
            found[-1] = self._some(last, self._starts[last], stop)
        return found

    def _some(self, number: int, start: int, stop: int) -> memoryview:
        begin = self._starts[number]
        return memoryview(self._parts[number]).cast("B")[start - begin : stop - begin]


def source_of(run: PlanRun, arrays: Sequence[Array]) -> Source:
    """What a run has of the arrays of a call, which are in the order of its keys."""
    if len(run.parts) == 1:
        (part,) = run.parts
        flat = memoryview(arrays[part.position]).cast("B")  # type: ignore[arg-type]  # mypy does not know arrays as buffers
        return OneBuffer(flat if part.whole else flat[part.start : part.stop])
    parts: list[Any] = list(run.pick(arrays))
    for number in run.partial:
        part = run.parts[number]
        parts[number] = memoryview(parts[number]).cast("B")[part.start : part.stop]
    return JoinedArrays(parts, run.starts)


# --- Where pulled values go: arrays that are the caller's, and small ones side by side in one buffer ------------------
# Small keys that are neighbours in a bucket come one behind the other in a frame; where they lie so here too, one copy
# puts all of them in place.


SMALL_BYTES: Final = 1 << 16
"""A larger value has memory of its own: who keeps one array of a buffer keeps all of the buffer."""

MAX_PACK_BYTES: Final = 1 << 20
"""Of one buffer: as much as the largest frame that a link makes by itself."""


@dataclass(frozen=True, slots=True)
class _Pack:
    """Keys whose values lie in one buffer, one behind the other."""

    positions: tuple[int, ...]
    dtypes: tuple[np.dtype[Any], ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Segments:
    """Bytes `starts[i]` to `starts[i + 1]` of a run go to buffer `buffers[i]`, `shifts[i]` bytes further on."""

    starts: tuple[int, ...]
    buffers: tuple[int, ...]
    shifts: tuple[int, ...]


class Landing:
    """The values of one pull: `arrays` in the order of the call; `buffers` are C-contiguous arrays whose memory they
    lie in."""

    __slots__ = ("_segments", "arrays", "buffers")

    def __init__(self, arrays: list[Array], buffers: list[Array], segments: Sequence[_Segments]) -> None:
        self.arrays = arrays
        self.buffers = buffers
        self._segments = segments

    def copy(self, run: int, start: int, stop: int, payload: memoryview) -> None:
        """Puts bytes `start` to `stop` of a run of the plan in their places."""
        found = self._segments[run]
        starts, at = found.starts, start
        number = bisect_right(starts, start) - 1
        while at < stop:
            end = min(starts[number + 1], stop)
            shift = found.shifts[number]
            memory = memoryview(self.buffers[found.buffers[number]]).cast("B")  # type: ignore[arg-type]  # as above
            memory[at + shift : end + shift] = payload[at - start : end - start]
            at = end
            number += 1


class PullLayout:
    """How the memory for some keys is cut up: the same for every pull of them. Of a layout without packs `segments` fit
    the caller's own arrays, in the order of the call."""

    __slots__ = ("_dtypes", "_in_order", "_packs", "_shapes", "_single", "segments")

    def __init__(
        self,
        packs: Sequence[_Pack],
        single: Sequence[int],
        segments: Sequence[_Segments],
        dtypes: Sequence[np.dtype[Any]],
        shapes: Sequence[tuple[int, ...]],
    ) -> None:
        self._packs = packs
        self._single = single
        self.segments = segments
        self._dtypes = dtypes
        self._shapes = shapes
        made = [position for pack in packs for position in pack.positions] + list(single)
        self._in_order = _picker(np.argsort(made).tolist() if packs else [])

    def make(self) -> Landing:
        """New memory. Raises MemoryError."""
        arrays: list[Array] = []
        buffers: list[Array] = []
        for pack in self._packs:
            buffer = np.empty(pack.nbytes, np.uint8)
            arrays += map(np.ndarray, pack.shapes, pack.dtypes, repeat(buffer), pack.offsets)
            buffers.append(buffer)
        for position in self._single:
            array: Array = np.empty(self._shapes[position], self._dtypes[position])
            arrays.append(array)
            buffers.append(array)
        return Landing(self._in_order(arrays), buffers, self.segments)


def pull_layout(
    runs: Iterable[PlanRun], dtypes: Sequence[np.dtype[Any]], shapes: Sequence[tuple[int, ...]], *, packed: bool
) -> PullLayout:
    """The layout of keys that have these runs; `packed`: small ones share buffers."""
    cuts = [_cut(run, packed=packed) for run in runs]
    packs = [_pack_of(run, some, dtypes, shapes) for run, parts in cuts for some in parts if len(some) > 1]
    in_packs = {position for pack in packs for position in pack.positions}
    single = [position for position in range(len(shapes)) if position not in in_packs]
    numbers = {pack.positions[0]: number for number, pack in enumerate(packs)}
    numbers |= {position: number for number, position in enumerate(single, len(packs))}
    segments = [_segments_of(run, parts, numbers) for run, parts in cuts]
    return PullLayout(packs, single, segments, dtypes, shapes)


def _cut(run: PlanRun, *, packed: bool) -> tuple[PlanRun, list[range]]:
    """The parts of a run, in groups that share memory."""
    groups: list[range] = []
    begin = 0
    while begin < len(run.parts):
        stop = begin + 1
        if packed and _is_small(run, begin):
            limit = run.starts[begin] + MAX_PACK_BYTES
            while stop < len(run.parts) and _is_small(run, stop) and run.starts[stop + 1] <= limit:
                stop += 1
        groups.append(range(begin, stop))
        begin = stop
    return run, groups


def _is_small(run: PlanRun, part: int) -> bool:
    return run.parts[part].whole and run.starts[part + 1] - run.starts[part] <= SMALL_BYTES


def _pack_of(run: PlanRun, parts: range, dtypes: Sequence[np.dtype[Any]], shapes: Sequence[tuple[int, ...]]) -> _Pack:
    begin = run.starts[parts.start]
    positions = tuple(run.parts[part].position for part in parts)
    return _Pack(
        positions,
        tuple(dtypes[position] for position in positions),
        tuple(shapes[position] for position in positions),
        tuple(run.starts[part] - begin for part in parts),
        run.starts[parts.stop] - begin,
    )


def _segments_of(run: PlanRun, groups: Sequence[range], numbers: dict[int, int]) -> _Segments:
    starts = [run.starts[group.start] for group in groups]
    firsts = [run.parts[group.start] for group in groups]
    shifts = [part.start - start for part, start in zip(firsts, starts, strict=True)]
    buffers = [numbers[part.position] for part in firsts]
    return _Segments((*starts, run.starts[-1]), tuple(buffers), tuple(shifts))


def _picker(places: Sequence[int]) -> Callable[[list[Array]], list[Array]]:
    """Puts arrays in another order; no places: leaves them."""
    if len(places) < 2:
        return lambda arrays: arrays
    pick = itemgetter(*places)
    return lambda arrays: list(pick(arrays))
