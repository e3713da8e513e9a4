"""Where the values of some keys lie on the shards, as runs of lots that are as long as can be. Pure.

Made once for a set of keys and used by every push and pull of them, so that a call does nothing for each slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from typing import Any

import numpy as np

from weft_kvstore.arrays.array import Array
from weft_kvstore.compression.choice import Choice
from weft_kvstore.compression.slice_codec import SliceCodec
from weft_kvstore.operations.plan_run import Part, PlanRun
from weft_kvstore.operations.pull_layout import PullLayout, pull_layout
from weft_kvstore.sharding.routing import Routing


@dataclass(frozen=True, slots=True, eq=False)
class KeyPlan:
    """`runs` by shard, and `of_lot` by shard and lot, ascending; `counts` how many slices each shard has, `total` how
    many there are.

    `part_firsts` (parts) int64 has the number of each part's first slice, over all runs in the order of their `begin`,
    and `part_positions` (parts) its key's. `packed` and `single` are where a pull's values go: see `PullLayout`.
    `has_pushed` and `has_pulled`: whether gradients, or values, of any of the keys travel encoded.
    """

    runs: Mapping[int, tuple[PlanRun, ...]]
    of_lot: Mapping[tuple[int, int], Sequence[PlanRun]]
    counts: Mapping[int, int]
    total: int
    part_firsts: Array
    part_positions: Array
    packed: PullLayout
    single: PullLayout
    has_pushed: bool
    has_pulled: bool


def key_plan(
    routing: Routing, places: Sequence[int], dtypes: Sequence[np.dtype[Any]], shapes: Sequence[tuple[int, ...]]
) -> KeyPlan:
    """The plan of the keys at these places of the description, which are distinct."""
    here: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for position, place in enumerate(places):
        for shard, first in routing.first_in_lot[place].items():
            here.setdefault((shard, routing.lot_of[place]), []).append((first, position))
    runs: dict[int, list[PlanRun]] = {}
    firsts: list[int] = []
    number = total = 0
    for shard, lot in sorted(here):
        for adjacent in _adjacent(routing, places, shard, sorted(here[shard, lot])):
            made = _run(routing, places, adjacent, shard=shard, lot=lot, number=number, begin=total)
            runs.setdefault(shard, []).append(made)
            firsts += [total + first - made.first for first, _ in adjacent]
            total += made.count
            number += 1
    found = {shard: tuple(some) for shard, some in runs.items()}
    in_order = [run for some in found.values() for run in some]
    of_lot: dict[tuple[int, int], list[PlanRun]] = {}
    for shard, some in found.items():
        for run in some:
            of_lot.setdefault((shard, run.lot), []).append(run)
    return KeyPlan(
        runs=found,
        of_lot=of_lot,
        counts={shard: sum(run.count for run in some) for shard, some in found.items()},
        total=total,
        part_firsts=np.array(firsts, np.int64),
        part_positions=np.array([part.position for run in in_order for part in run.parts], np.int64),
        packed=pull_layout(in_order, dtypes, shapes, packed=True),
        single=pull_layout(in_order, dtypes, shapes, packed=False),
        has_pushed=any(run.pushed is not None for run in in_order),
        has_pulled=any(run.pulled is not None for run in in_order),
    )


def _adjacent(
    routing: Routing, places: Sequence[int], shard: int, keys: Iterable[tuple[int, int]]
) -> list[list[tuple[int, int]]]:
    """Keys (first slice, position) in ascending order, in groups of which each continues the one before it."""
    groups: list[list[tuple[int, int]]] = []
    stop = -1
    for first, position in keys:
        if first != stop:
            groups.append([])
        groups[-1].append((first, position))
        stop = first + len(routing.runs[places[position]][shard])
    return groups


def _run(
    routing: Routing,
    places: Sequence[int],
    keys: Sequence[tuple[int, int]],
    *,
    shard: int,
    lot: int,
    number: int,
    begin: int,
) -> PlanRun:
    held = routing.lots[lot].parts[shard]
    first = keys[0][0]
    stop = keys[-1][0] + len(routing.runs[places[keys[-1][1]]][shard])
    priorities = held.priorities[first:stop]
    parts = []
    for _, position in keys:
        place = places[position]
        cut, run = routing.cuts[place], routing.runs[place][shard]
        whole = len(run) == cut.count
        parts.append(Part(position, run.start, cut.start(run.start), cut.start(run.stop), whole))
    starts = [0, *accumulate(part.stop - part.start for part in parts)]
    bounds = held.bounds[first : stop + 1] - held.bounds[first]
    return PlanRun(
        number=number,
        lot=lot,
        first=first,
        count=stop - first,
        begin=begin,
        bounds=bounds,
        priority=int(priorities[0]),
        priorities=None if priorities[0] == priorities[-1] else priorities,
        parts=tuple(parts),
        starts=tuple(starts),
        partial=tuple(number for number, part in enumerate(parts) if not part.whole),
        pick=itemgetter(*(part.position for part in parts)),
        part_slices=(*(one - first for one, _ in keys), stop - first),
        pushed=_codec(routing.lots[lot].pushed, bounds),
        pulled=_codec(routing.lots[lot].pulled, bounds),
    )


def _codec(choice: Choice | None, bounds: Array) -> SliceCodec | None:
    """For slices that begin at these bytes."""
    return None if choice is None else SliceCodec(choice.codec, bounds // choice.codec.dtype.itemsize)
