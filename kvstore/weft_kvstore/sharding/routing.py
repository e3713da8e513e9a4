"""Which shard has which slices, and where: a pure function of the description.

Bounds of slices depend on shape, dtype and the job's slice size alone, so sums do not depend on the number of shards.
Each slice goes to the shard with the fewest bytes so far, so loads differ by at most one slice; within a key, slices of
one shard are then made adjacent, so that they travel and are copied as one run. A key that is `whole` has all its
slices on one shard. A table is spread by rows, evenly of itself: see `row_cut`.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

from weft_kvstore.description.records import StoreDescription
from weft_kvstore.sharding.lots import Lot, lots_of
from weft_kvstore.sharding.row_cut import RowCut, row_cut
from weft_kvstore.sharding.slices import KeySlices, slices_of


@dataclass(frozen=True, slots=True, eq=False)
class Routing:
    """`shards` is their number. `cuts` by key's place; `runs[key][shard]` are the slices that the shard has of the key.
    `tables`, by key's place, have neither.

    `lots` are what shards keep as one: key `place` is in lot `lot_of[place]`, and the first slice that a shard has of
    it is slice `first_in_lot[place][shard]` there.
    """

    shards: int
    cuts: tuple[KeySlices, ...]
    runs: tuple[Mapping[int, range], ...]
    tables: Mapping[int, RowCut]
    lots: tuple[Lot, ...]
    lot_of: tuple[int, ...]
    first_in_lot: tuple[Mapping[int, int], ...]


def routing_of(description: StoreDescription) -> Routing:
    """The routing that every process of this description computes alike."""
    loads = [(0, shard) for shard in range(len(description.shards))]
    cuts = tuple(slices_of(key, description.slice_bytes) for key in description.keys)
    tables = {
        place: row_cut(key, description.slice_bytes, len(description.shards))
        for place, key in enumerate(description.keys)
        if key.rows
    }
    runs = tuple(_deal(cut, loads, whole=key.whole) for key, cut in zip(description.keys, cuts, strict=True))
    lots = lots_of(description, cuts, runs)
    lot_of = {place: lot.number for lot in lots for place in lot.keys}
    firsts: list[dict[int, int]] = [{} for _ in description.keys]
    for lot in lots:
        for shard, part in lot.parts.items():
            begun = 0
            for place in lot.keys:
                if shard in runs[place]:
                    firsts[place][shard] = begun
                    begun += len(runs[place][shard])
            assert begun == len(part)
    places = range(len(description.keys))
    return Routing(
        len(description.shards), cuts, runs, tables, lots, tuple(lot_of[place] for place in places), tuple(firsts)
    )


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
