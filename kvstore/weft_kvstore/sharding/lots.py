"""Lots: what a shard keeps and updates as one. A pure function of the description and of who has which slice.

Keys that are updated alike (same dtype, slots, update, multipliers, compression) lie in one lot, the most urgent first,
one behind the other; so that what is done to a slice is done to any run of them at once. A key that is `whole`, and a
table, are a lot of their own. Lots are numbered in the order in which their first keys are described.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from weft_kvstore.arrays.array import Array
from weft_kvstore.compression.choice import Choice, choice_of, pulled_of, pushed_of
from weft_kvstore.compression.description import StoreCompression
from weft_kvstore.description.records import KeyDescription, StoreDescription
from weft_kvstore.sharding.slices import KeySlices


class LotKind(Enum):
    PLAIN = "plain"
    WHOLE = "whole"
    TABLE = "table"


@dataclass(frozen=True, slots=True, eq=False)
class LotPart:
    """What a shard has of a lot: slices, numbered from 0. Slice i is slice `indices[i]` of the key at `places[i]`, of
    that key's priority `priorities[i]`, and lies at bytes `bounds[i]` to `bounds[i + 1]` of the lot's values here.

    Priorities ascend. All arrays are int64.
    """

    places: Array
    indices: Array
    priorities: Array
    bounds: Array

    def __len__(self) -> int:
        return len(self.places)


@dataclass(frozen=True, slots=True, eq=False)
class Lot:
    """`keys`: the places of its keys in the description, in the order in which they lie. `parts` by shard; of a table
    there are none, for its rows are numbered by their ids. `pushed` and `pulled`: how its gradients travel, and its
    values; None as they are."""

    number: int
    kind: LotKind
    keys: tuple[int, ...]
    parts: Mapping[int, LotPart]
    pushed: Choice | None
    pulled: Choice | None


def lots_of(
    description: StoreDescription, cuts: Sequence[KeySlices], runs: Sequence[Mapping[int, range]]
) -> tuple[Lot, ...]:
    """All lots; `runs[place][shard]` are the slices that a shard has of a key."""
    alike: dict[Any, list[int]] = {}
    for place, key in enumerate(description.keys):
        alike.setdefault(_likeness(description, place, key), []).append(place)
    found: list[Lot] = []
    for number, places in enumerate(alike.values()):
        first = description.keys[places[0]]
        kind = LotKind.TABLE if first.rows else LotKind.WHOLE if first.whole else LotKind.PLAIN
        ordered = tuple(sorted(places, key=lambda place: (description.keys[place].priority, place)))
        parts = {} if kind is LotKind.TABLE else _parts(description.keys, ordered, cuts, runs)
        setting = _setting(description, first)
        pushed = choice_of(pushed_of(setting, first), first.dtype)
        pulled = choice_of(pulled_of(setting, first), first.dtype)
        found.append(Lot(number, kind, ordered, parts, pushed, pulled))
    return tuple(found)


def _likeness(description: StoreDescription, place: int, key: KeyDescription) -> Any:
    """Equal for keys that can be updated as one, and travel alike."""
    if key.rows or key.whole:
        return place
    setting = _setting(description, key)
    travels = pushed_of(setting, key), pulled_of(setting, key)
    return key.dtype, key.slots, key.update, key.staleness, tuple(sorted(key.multipliers.items())), travels


def _setting(description: StoreDescription, key: KeyDescription) -> StoreCompression | None:
    if not key.slots:
        return None  # A frozen parameter is fetched once, and read as it is.
    return description.compression if key.compression is None else key.compression


def _parts(
    keys: Sequence[KeyDescription],
    ordered: Sequence[int],
    cuts: Sequence[KeySlices],
    runs: Sequence[Mapping[int, range]],
) -> Mapping[int, LotPart]:
    found: dict[int, LotPart] = {}
    for shard in sorted({shard for place in ordered for shard in runs[place]}):
        here = [(place, runs[place][shard]) for place in ordered if shard in runs[place]]
        counts = [len(run) for _, run in here]
        places = np.repeat([place for place, _ in here], counts)
        indices = np.concatenate([np.arange(run.start, run.stop) for _, run in here])
        lengths = np.concatenate([_lengths(cuts[place], run) for place, run in here])
        priorities = np.repeat([keys[place].priority for place, _ in here], counts)
        bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        found[shard] = LotPart(places, indices, priorities, bounds)
    return found


def _lengths(cut: KeySlices, run: range) -> Array:
    """Bytes of each slice of a run."""
    ends = np.minimum(np.arange(run.start, run.stop + 1) * cut.step_bytes, cut.nbytes)
    lengths: Array = np.diff(ends)
    return lengths
