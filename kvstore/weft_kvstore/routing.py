"""How a key is cut into slices, and which shard has which: a pure function of the description.

Bounds of slices depend on shape, dtype and the job's slice size alone, so sums do not depend on the number of shards.
Each slice goes to the shard with the fewest bytes so far, so loads differ by at most one slice; within a key, slices of
one shard are then made adjacent, so that they travel and are copied as one run. A key that is `whole` has all its
slices on one shard. A table is spread by rows, evenly of itself: see `row_cut`.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from weft_kvstore.description import KeyDescription, StoreDescription
from weft_kvstore.row_cut import RowCut, row_cut


@dataclass(frozen=True, slots=True)
class KeySlices:
    """The cut of one key: `count` slices of `step_bytes` bytes each, the last one of what is left."""

    nbytes: int
    step_bytes: int
    count: int

    def start(self, index: int) -> int:
        """Where slice `index` begins in the key's value, bytes; for index = count where the last one ends."""
        return min(index * self.step_bytes, self.nbytes)

    def length(self, first: int, count: int = 1) -> int:
        """Bytes of `count` adjacent slices."""
        return self.start(first + count) - self.start(first)


def slices_of(key: KeyDescription, slice_bytes: int) -> KeySlices:
    """The cut of a key: whole elements, at least one to a slice; none for an empty value, nor for a table."""
    itemsize = np.dtype(key.dtype).itemsize
    step = max(slice_bytes // itemsize, 1) * itemsize
    nbytes = 0 if key.rows else key.nbytes
    return KeySlices(nbytes, step, -(-nbytes // step))


@dataclass(frozen=True, slots=True)
class Routing:
    """`shards` is their number. `cuts` by key's place; `runs[key][shard]` are the slices that the shard has of the key.
    `tables`, by key's place, have neither."""

    shards: int
    cuts: tuple[KeySlices, ...]
    runs: tuple[Mapping[int, range], ...]
    tables: Mapping[int, RowCut]


def routing_of(description: StoreDescription) -> Routing:
    """The routing that every process of this description computes alike."""
    loads = [(0, shard) for shard in range(len(description.shards))]
    cuts = tuple(slices_of(key, description.slice_bytes) for key in description.keys)
    tables = {
        place: row_cut(key, description.slice_bytes, len(description.shards))
        for place, key in enumerate(description.keys)
        if key.rows
    }
    runs = (_deal(cut, loads, whole=key.whole) for key, cut in zip(description.keys, cuts, strict=True))
    return Routing(len(description.shards), cuts, tuple(runs), tables)


def _deal(cut: KeySlices, loads: list[tuple[int, int]], *, whole: bool) -> Mapping[int, range]:
    """Gives each slice, or all of them, to the shard with the fewest bytes; `loads` is a heap of (bytes, shard)."""
    if whole and cut.count:
        load, shard = loads[0]
        heapq.heapreplace(loads, (load + cut.nbytes, shard))
        return {shard: range(cut.count)}
    counts: dict[int, int] = {}
    shard = 0
    for index in range(cut.count):
        load, shard = loads[0]
        heapq.heapreplace(loads, (load + cut.length(index), shard))
        counts[shard] = counts.get(shard, 0) + 1
    # The last slice may be the shorter one: it stays where it was dealt, so that shard's run comes last.
    order = sorted(counts, key=lambda one: (one == shard, one))
    runs: dict[int, range] = {}
    begin = 0
    for one in order:
        runs[one] = range(begin, begin + counts[one])
        begin += counts[one]
    return runs
