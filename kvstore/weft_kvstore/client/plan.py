"""The keys of one call, looked up and cut for the shards once for all calls that name them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from typing import Any, Final

import numpy as np

from weft_graph.program import Update
from weft_kvstore.arrays import Array
from weft_kvstore.client.runs import Part, PlanRun, PullLayout, pull_layout
from weft_kvstore.compression.description import Choice
from weft_kvstore.compression.slices import SliceCodec
from weft_kvstore.description.check import rule_of
from weft_kvstore.description.records import KeyDescription, StoreDescription
from weft_kvstore.errors import StoreRefusedError
from weft_kvstore.sharding import Routing, RowCut, row_cut

# --- Where the values of some keys lie on the shards, as runs of buckets that are as long as can be -------------------
# Made once for a set of keys and used by every push and pull of them, so that a call does nothing for each slice.


@dataclass(frozen=True, slots=True, eq=False)
class KeyPlan:
    """`runs` by shard, and `of_bucket` by shard and bucket, ascending; `counts` how many slices each shard has,
    `total` how many there are.

    `part_firsts` (parts) int64 has the number of each part's first slice, over all runs in the order of their `begin`,
    and `part_positions` (parts) its key's. `packed` and `single` are where a pull's values go: see `PullLayout`.
    `has_pushed` and `has_pulled`: whether gradients, or values, of any of the keys travel encoded.
    """

    runs: Mapping[int, tuple[PlanRun, ...]]
    of_bucket: Mapping[tuple[int, int], Sequence[PlanRun]]
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
        for shard, first in routing.first_in_bucket[place].items():
            here.setdefault((shard, routing.bucket_of[place]), []).append((first, position))
    runs: dict[int, list[PlanRun]] = {}
    firsts: list[int] = []
    number = total = 0
    for shard, bucket in sorted(here):
        for adjacent in _adjacent(routing, places, shard, sorted(here[shard, bucket])):
            made = _run(routing, places, adjacent, shard=shard, bucket=bucket, number=number, begin=total)
            runs.setdefault(shard, []).append(made)
            firsts += [total + first - made.first for first, _ in adjacent]
            total += made.count
            number += 1
    found = {shard: tuple(some) for shard, some in runs.items()}
    in_order = [run for some in found.values() for run in some]
    of_bucket: dict[tuple[int, int], list[PlanRun]] = {}
    for shard, some in found.items():
        for run in some:
            of_bucket.setdefault((shard, run.bucket), []).append(run)
    return KeyPlan(
        runs=found,
        of_bucket=of_bucket,
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
    bucket: int,
    number: int,
    begin: int,
) -> PlanRun:
    held = routing.buckets[bucket].parts[shard]
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
        bucket=bucket,
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
        pushed=_codec(routing.buckets[bucket].pushed, bounds),
        pulled=_codec(routing.buckets[bucket].pulled, bounds),
    )


def _codec(choice: Choice | None, bounds: Array) -> SliceCodec | None:
    """For slices that begin at these bytes."""
    return None if choice is None else SliceCodec(choice.codec, bounds // choice.codec.dtype.itemsize)


# --- The keys of one call, in its order, with what every call of them needs anew --------------------------------------


NAMES_SHOWN: Final = 4


class KeySet:
    """Keys that are pushed, set or pulled together; none is a table, and none is there twice.

    `places` are those in the description. `others` are the keys to which the slot of the call does not contribute,
    `moving` the numbers of those to which anybody does. The plan is made once, at the first call: two threads that make
    it at once make the same.
    """

    __slots__ = ("_plan", "dtypes", "moving", "names", "others", "places", "shapes")

    def __init__(self, keys: Sequence[KeyDescription], places: Sequence[int], slot: int) -> None:
        self.places = tuple(places)
        self.names = tuple(key.key for key in keys)
        self.dtypes: tuple[np.dtype[Any], ...] = tuple(np.dtype(key.dtype) for key in keys)
        self.shapes = tuple(tuple(key.shape) for key in keys)
        self.others = tuple(key for key in keys if slot not in key.slots)
        self.moving = tuple(number for number, key in enumerate(keys) if key.slots)
        self._plan: KeyPlan | None = None

    def __len__(self) -> int:
        return len(self.names)

    def described(self, number: int) -> str:
        """A key's dtype and shape, in words."""
        return f"{self.dtypes[number]}{list(self.shapes[number])}"

    def plan(self, routing: Routing) -> KeyPlan:
        """Where they lie; `routing` is the same in every call."""
        if self._plan is None:
            self._plan = key_plan(routing, self.places, self.dtypes, self.shapes)
        return self._plan

    def __str__(self) -> str:
        if len(self.names) == 1:
            return f"key {self.names[0]!r}"
        shown = ", ".join(map(repr, self.names[:NAMES_SHOWN]))
        more = len(self.names) - NAMES_SHOWN
        return f"{len(self.names)} keys ({shown}{f' and {more} more' if more > 0 else ''})"


# --- The keys that a store has, found by the names that a caller says, and what is worked out of them once ------------


KEY_SETS_KEPT: Final = 64
"""Of several keys, so many are remembered: a program that trains has a few."""


class KnownKeys:
    """One slot's keys. `places` has the place of each in the description. Whoever asks for one says for which `call`,
    as the error names it. Any thread may ask: those that make the same thing at once make it alike."""

    __slots__ = ("_cuts", "_description", "_many", "_one", "_slot", "_state", "places")

    def __init__(self, description: StoreDescription, slot: int) -> None:
        self.places = {key.key: place for place, key in enumerate(description.keys)}
        self._description = description
        self._slot = slot
        self._one: dict[str, KeySet] = {}
        self._many: dict[tuple[str, ...], KeySet] = {}
        self._cuts: dict[str, RowCut] = {}
        self._state: dict[str, tuple[str, ...]] = {}

    def known(self, name: str, call: str) -> KeyDescription:
        """Any key. Raises StoreRefusedError for one that there is not."""
        place = self.places.get(name)
        if place is None:
            raise StoreRefusedError(f"slot {self._slot}: {call} of key {name!r}: the store has no such key")
        return self._description.keys[place]

    def table(self, name: str, call: str) -> KeyDescription:
        """A key that goes by rows. Raises StoreRefusedError for one that does not."""
        key = self.known(name, call)
        if not key.rows:
            raise StoreRefusedError(f"slot {self._slot}: {call} of rows of key {name!r}: it is no table")
        return key

    def one(self, name: str, call: str) -> KeySet:
        """A key that is no table, as a set of one. Raises StoreRefusedError."""
        found = self._one.get(name)
        if found is None:
            found = self._one[name] = KeySet([self._dense(name, call)], [self.places[name]], self._slot)
        return found

    def many(self, names: Sequence[str], call: str) -> KeySet:
        """Keys that are distinct and no tables. Raises StoreRefusedError."""
        if isinstance(names, str):
            raise StoreRefusedError(f"slot {self._slot}: {call} of keys: {names!r} is one name, not several")
        wanted = tuple(names)
        if len(wanted) == 1:
            return self.one(wanted[0], call)
        found = self._many.get(wanted)
        if found is None:
            found = self._set_of(wanted, call)
            if len(self._many) >= KEY_SETS_KEPT:
                self._many = {}
            self._many[wanted] = found
        return found

    def state_of(self, key: KeyDescription) -> tuple[str, ...]:
        """The names of the arrays that its rule keeps; none where no rule updates it."""
        if key.update is not Update.RULE:
            return ()
        found = self._state.get(key.key)
        if found is None:
            found = self._state[key.key] = tuple(rule_of(self._description, key).state)
        return found

    def row_cut(self, key: KeyDescription) -> RowCut:
        """How a table's rows are dealt to shards, and cut into chunks."""
        found = self._cuts.get(key.key)
        if found is None:
            found = row_cut(key, self._description.slice_bytes, len(self._description.shards))
            self._cuts[key.key] = found
        return found

    def _set_of(self, wanted: tuple[str, ...], call: str) -> KeySet:
        keys = [self._dense(name, call) for name in wanted]
        if len(set(wanted)) < len(wanted):
            twice = next(name for number, name in enumerate(wanted) if name in wanted[:number])
            raise StoreRefusedError(f"slot {self._slot}: {call} of {len(wanted)} keys: {twice!r} is there twice")
        return KeySet(keys, [self.places[name] for name in wanted], self._slot)

    def _dense(self, name: str, call: str) -> KeyDescription:
        key = self.known(name, call)
        if key.rows:
            raise StoreRefusedError(f"slot {self._slot}: {call} of key {name!r}: it is a table, which goes by rows")
        return key
