"""The keys of one call, looked up and cut for the shards once for all calls that name them: runs of slices, their bytes
as they are sent, and where pulled ones go. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from typing import Any, Final, TypeVar

import numpy as np

from weft_graph.program import Update
from weft_kvstore.arrays import Array, Buffer
from weft_kvstore.compression.codecs import Codec
from weft_kvstore.compression.slices import SliceCodec
from weft_kvstore.description.check import rule_of
from weft_kvstore.description.records import KeyDescription, StoreDescription
from weft_kvstore.errors import StoreRefusedError
from weft_kvstore.sharding import Routing, RowLayout, row_layout
from weft_kvstore.wire.outbox import BufferSource, Source

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
    """Adjacent slices of what a shard has of a bucket; in the plan they are numbered from `begin`.

    Slice `first + i` has bytes `bounds[i]` to `bounds[i + 1]` of the run, and priority `priorities[i]`; where all have
    one, it is `priority` and they are None. `parts` are what its keys have there, one behind the other; part i begins
    at byte `starts[i]`, and the last one ends at the last of `starts`. Where there are several, `pick` takes their
    arrays, in order, from those of the call; `partial` are the numbers of parts that are not whole.

    Part i begins at slice `part_slices[i]` of the run, and the last one ends at the last of them. `pushed` and
    `pulled`: what its gradients, and its values, may be encoded with; None as they are.
    """

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

    def write(self, start: int, stop: int, payload: memoryview, arrays: Sequence[Array]) -> None:
        """Copies bytes `start` to `stop` of the run to where they belong in a call's C-contiguous arrays."""
        first = bisect_right(self.starts, start) - 1 if start else 0
        for number in range(first, len(self.parts)):
            part, begin, end = self.parts[number], self.starts[number], self.starts[number + 1]
            memory = memoryview(arrays[part.position]).cast("B")  # type: ignore[arg-type]  # an array is a buffer
            if part.whole and start <= begin and end <= stop:
                memory[:] = payload[begin - start : end - start]
            elif begin < stop:
                low, high, shift = max(begin, start), min(end, stop), part.start - begin
                memory[low + shift : high + shift] = payload[low - start : high - start]
            else:
                break


# --- The bytes of a run over the arrays of some keys, without a look at each array before it is sent ------------------


class JoinedArrays:
    """Parts one behind the other: C-contiguous arrays, or views of some of their bytes. Part i has the run's bytes
    `starts[i]` to `starts[i + 1]`."""

    __slots__ = ("_parts", "_starts")

    def __init__(self, parts: list[Any], starts: Sequence[int]) -> None:
        self._parts = parts
        self._starts = starts

    def read(self, start: int, stop: int) -> Sequence[Buffer]:
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
        return BufferSource(flat if part.whole else flat[part.start : part.stop])
    parts: list[Any] = list(run.pick(arrays))
    for number in run.partial:
        part = run.parts[number]
        parts[number] = memoryview(parts[number]).cast("B")[part.start : part.stop]
    return JoinedArrays(parts, run.starts)


# --- Where the values of some keys lie on the shards, as runs of buckets that are as long as can be -------------------
# Made once for a set of keys and used by every push and pull of them, so that a call does nothing for each slice.


@dataclass(frozen=True, slots=True, eq=False)
class KeyPlan:
    """`runs` by shard, and `of_bucket` by shard and bucket, ascending; `asks` is what a pull asks a shard for, (bucket,
    first slice, slices, 0); `counts` how many slices each shard has, `total` how many there are.

    `part_firsts` (parts) int64 has the number of each part's first slice, over all runs in the order of their `begin`,
    and `part_positions` (parts) its key's. `has_pushed` and `has_pulled`: whether gradients, or values, of any of the
    keys travel encoded.
    """

    runs: Mapping[int, tuple[PlanRun, ...]]
    of_bucket: Mapping[tuple[int, int], Sequence[PlanRun]]
    asks: Mapping[int, list[tuple[int, int, int, int]]]
    counts: Mapping[int, int]
    total: int
    part_firsts: Array
    part_positions: Array
    has_pushed: bool
    has_pulled: bool


def key_plan(routing: Routing, key_indices: Sequence[int]) -> KeyPlan:
    """The plan of the keys at these indices of the description, which are distinct."""
    here: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for position, key_index in enumerate(key_indices):
        for shard, first in routing.first_in_bucket[key_index].items():
            here.setdefault((shard, routing.bucket_of[key_index]), []).append((first, position))
    runs: dict[int, list[PlanRun]] = {}
    firsts: list[int] = []
    total = 0
    for shard, bucket in sorted(here):
        for adjacent in _adjacent(routing, key_indices, shard, sorted(here[shard, bucket])):
            made = _run(routing, key_indices, adjacent, shard=shard, bucket=bucket, begin=total)
            runs.setdefault(shard, []).append(made)
            firsts += [total + first - made.first for first, _ in adjacent]
            total += made.count
    found = {shard: tuple(some) for shard, some in runs.items()}
    in_order = [run for some in found.values() for run in some]
    of_bucket: dict[tuple[int, int], list[PlanRun]] = {}
    for shard, some in found.items():
        for run in some:
            of_bucket.setdefault((shard, run.bucket), []).append(run)
    return KeyPlan(
        runs=found,
        of_bucket=of_bucket,
        asks={shard: [(run.bucket, run.first, run.count, 0) for run in some] for shard, some in found.items()},
        counts={shard: sum(run.count for run in some) for shard, some in found.items()},
        total=total,
        part_firsts=np.array(firsts, np.int64),
        part_positions=np.array([part.position for run in in_order for part in run.parts], np.int64),
        has_pushed=any(run.pushed is not None for run in in_order),
        has_pulled=any(run.pulled is not None for run in in_order),
    )


def _adjacent(
    routing: Routing, key_indices: Sequence[int], shard: int, keys: Iterable[tuple[int, int]]
) -> list[list[tuple[int, int]]]:
    """Keys (first slice, position) in ascending order, in groups of which each continues the one before it."""
    groups: list[list[tuple[int, int]]] = []
    stop = -1
    for first, position in keys:
        if first != stop:
            groups.append([])
        groups[-1].append((first, position))
        stop = first + len(routing.runs[key_indices[position]][shard])
    return groups


def _run(
    routing: Routing,
    key_indices: Sequence[int],
    keys: Sequence[tuple[int, int]],
    *,
    shard: int,
    bucket: int,
    begin: int,
) -> PlanRun:
    held = routing.buckets[bucket].parts[shard]
    first = keys[0][0]
    stop = keys[-1][0] + len(routing.runs[key_indices[keys[-1][1]]][shard])
    priorities = held.priorities[first:stop]
    parts = []
    for _, position in keys:
        key_index = key_indices[position]
        slices, run = routing.slices[key_index], routing.runs[key_index][shard]
        whole = len(run) == slices.count
        parts.append(Part(position, run.start, slices.start(run.start), slices.start(run.stop), whole))
    starts = [0, *accumulate(part.stop - part.start for part in parts)]
    bounds = held.bounds[first : stop + 1] - held.bounds[first]
    return PlanRun(
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


def _codec(codec: Codec | None, bounds: Array) -> SliceCodec | None:
    """For slices that begin at these bytes."""
    return None if codec is None else SliceCodec(codec, bounds // codec.dtype.itemsize)


# --- The keys of one call, in its order, with what every call of them needs anew --------------------------------------


NAMES_SHOWN: Final = 4

SMALL_BYTES: Final = 1 << 16
"""A message may have all of so much, and more."""


class KeySet:
    """Keys that are pushed, set or pulled together; none is a table, and none is there twice.

    `key_indices` are those in the description. `is_small`: a message may have all of it and more. `not_pushed` are the
    keys to which the slot of the call does not contribute, `versioned` the numbers of those to which anybody does. The
    plan is `made` once, at the first call: two threads that make it at once make the same."""

    __slots__ = ("dtypes", "is_small", "key_indices", "made", "names", "not_pushed", "shapes", "versioned")

    def __init__(self, keys: Sequence[KeyDescription], key_indices: Sequence[int], slot: int) -> None:
        self.key_indices = tuple(key_indices)
        self.names = tuple(key.key for key in keys)
        self.dtypes: tuple[np.dtype[Any], ...] = tuple(np.dtype(key.dtype) for key in keys)
        self.shapes = tuple(tuple(key.shape) for key in keys)
        self.is_small = sum(key.size * np.dtype(key.dtype).itemsize for key in keys) <= SMALL_BYTES
        self.not_pushed = tuple(key for key in keys if slot not in key.slots)
        self.versioned = tuple(number for number, key in enumerate(keys) if key.slots)
        self.made: KeyPlan | None = None

    def __len__(self) -> int:
        return len(self.names)

    def fitting(self, given: Any, *, single: bool, writable: bool = False) -> list[Array] | None:
        """The arrays of a call, one a key, where all are NumPy's, C-contiguous and of the keys' dtypes and shapes.
        `single`: the one key's array was given, not a list."""
        if single:
            arrays = [given]
        elif isinstance(given, list | tuple) and len(given) == len(self.names):
            arrays = [*given]
        else:
            return None
        for array, dtype, shape in zip(arrays, self.dtypes, self.shapes, strict=True):
            if type(array) is not np.ndarray or array.dtype != dtype:
                return None
            flags = array.flags
            if array.shape != shape or not flags.c_contiguous or (writable and not flags.writeable):
                return None
        return arrays

    def new_arrays(self) -> list[Array]:
        """An array for each value. Raises MemoryError."""
        return [*map(np.empty, self.shapes, self.dtypes)]

    def described(self, number: int) -> str:
        """A key's dtype and shape, in words."""
        return f"{self.dtypes[number]}{list(self.shapes[number])}"

    def plan(self, routing: Routing) -> KeyPlan:
        """Where they lie; `routing` is the same in every call."""
        if self.made is None:
            self.made = key_plan(routing, self.key_indices)
        return self.made

    def __str__(self) -> str:
        if len(self.names) == 1:
            return f"key {self.names[0]!r}"
        shown = ", ".join(map(repr, self.names[:NAMES_SHOWN]))
        more = len(self.names) - NAMES_SHOWN
        return f"{len(self.names)} keys ({shown}{f' and {more} more' if more > 0 else ''})"


@dataclass(frozen=True, slots=True, eq=False)
class TableKey:
    """A table whose rows the slot pushes, and pulls, with what every call of it needs anew. `key_index` is that in the
    description."""

    key: KeyDescription
    key_index: int
    layout: RowLayout

    def __str__(self) -> str:
        return f"key {self.key.key!r}"


# --- The keys that a store has, found by the names that a caller says, and what is worked out of them once ------------


KEYS_KEPT: Final = 1 << 16
"""Keys in the lists that are remembered, beside four times those of the description: a program that trains has a list
for each key, and a few of several. A key in a list takes some 300 bytes."""

T = TypeVar("T")


class KeyLists(dict[Any, T]):
    """What was worked out of lists of keys. All of it is forgotten when the lists have more than `most` keys
    together."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0

    def keep(self, keys: object, made: T, count: int) -> None:
        """What was made of a list of so many keys."""
        self._count += count
        if self._count > self._most:
            self.clear()
            self._count = count
        self[keys] = made


class KnownKeys:
    """One slot's keys. `key_indices` has the index of each in the description. Whoever asks for one says for which
    `call`, as the error names it. Any thread may ask: those that make the same thing at once make it alike."""

    __slots__ = ("_description", "_sets", "_slot", "_tables", "key_indices")

    def __init__(self, description: StoreDescription, slot: int) -> None:
        self.key_indices = {key.key: key_index for key_index, key in enumerate(description.keys)}
        self._description = description
        self._slot = slot
        self._sets: KeyLists[KeySet] = KeyLists(KEYS_KEPT + 4 * len(description.keys))
        self._tables: dict[str, TableKey] = {}

    def known(self, name: str, call: str) -> KeyDescription:
        """Any key. Raises StoreRefusedError for one that there is not."""
        key_index = self.key_indices.get(name)
        if key_index is None:
            raise StoreRefusedError(f"slot {self._slot}: {call} of key {name!r}: the store has no such key")
        return self._description.keys[key_index]

    def table(self, name: str, call: str) -> TableKey:
        """A key that goes by rows. Raises StoreRefusedError for one that does not."""
        found = self._tables.get(name)
        if found is None:
            key = self.known(name, call)
            if not key.rows:
                raise StoreRefusedError(f"slot {self._slot}: {call} of rows of key {name!r}: it is no table")
            layout = row_layout(key, self._description.slice_bytes, len(self._description.shards))
            found = self._tables[name] = TableKey(key, self.key_indices[name], layout)
        return found

    def one(self, name: str, call: str) -> KeySet:
        """A key that is no table, as a set of one. Raises StoreRefusedError."""
        return self.many((name,), call)

    def many(self, names: Sequence[str], call: str) -> KeySet:
        """Keys that are distinct and no tables. Raises StoreRefusedError."""
        if isinstance(names, str):
            raise StoreRefusedError(f"slot {self._slot}: {call} of keys: {names!r} is one name, not several")
        wanted = tuple(names)
        found = self._sets.get(wanted)
        if found is None:
            keys = [self.known(name, call) for name in wanted]
            for key in keys:
                if key.rows:
                    where = f"slot {self._slot}: {call} of key {key.key!r}"
                    raise StoreRefusedError(f"{where}: it is a table, which goes by rows")
            if len({*wanted}) < len(wanted):
                twice = next(name for number, name in enumerate(wanted) if name in wanted[:number])
                raise StoreRefusedError(f"slot {self._slot}: {call} of {len(wanted)} keys: {twice!r} is there twice")
            found = KeySet(keys, [self.key_indices[name] for name in wanted], self._slot)
            self._sets.keep(wanted, found, len(wanted))
        return found

    def state_of(self, key: KeyDescription) -> tuple[str, ...]:
        """The names of the arrays that its rule keeps; none where no rule updates it."""
        return tuple(rule_of(self._description, key).state) if key.update is Update.RULE else ()
