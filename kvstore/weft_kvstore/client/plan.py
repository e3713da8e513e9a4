"""The keys of a call, found and cut for the shards once for all calls that name them: segments, their bytes
as they are sent, and where pulled ones go. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from weft_graph.program import Update
from weft_kvstore.arrays import Array, Buffer
from weft_kvstore.compression import SliceCodec
from weft_kvstore.description.check import rule_of
from weft_kvstore.description.form import BARRIER_KEY, UserKey, store_name, user_key
from weft_kvstore.description.records import KeyDescription, StoreDescription
from weft_kvstore.errors import StoreRefusedError
from weft_kvstore.sharding import Routing

# --- Where the values of some keys lie on the shards, as segments of buckets that are as long as can be ---------------
# Made once for a set of keys and used by every push and pull of them, so that a call does nothing for each slice. A
# call's slices are numbered through, and so are its bytes: by shard, bucket, and slice of the bucket.


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes of the value of the key at `position` in the call, from its byte `start` on; `whole` where they are all."""

    position: int
    start: int
    whole: bool


@dataclass(frozen=True, slots=True, eq=False)
class PlanSegment:
    """Adjacent slices of what a shard has of a bucket, which numbers them from `first` on; the call numbers them from
    `number` on.

    Slice `first + i` has bytes `bounds[i]` to `bounds[i + 1]` of the call, and priority `priorities[i]`; where all have
    one, it is `priority` and they are None. `pushed` and `pulled`: what its gradients, and its values, may be encoded
    with; None as they are.
    """

    bucket: int
    first: int
    count: int
    number: int
    bounds: Array
    priority: int
    priorities: Array | None
    pushed: SliceCodec | None
    pulled: SliceCodec | None


@dataclass(frozen=True, slots=True, eq=False)
class KeyPlan:
    """`segments` by shard, ascending by bucket and slice; `asks` is what a pull asks a shard for, (bucket, first slice,
    slices, 0); `counts` how many slices each shard has, `total` how many there are. `byte_ranges` lie one behind the
    other: number i has bytes `starts[i]` to `starts[i + 1]` of the call. `has_pushed`: whether gradients of any of the
    keys travel encoded.
    """

    segments: Mapping[int, Sequence[PlanSegment]]
    asks: Mapping[int, list[tuple[int, int, int, int]]]
    counts: Mapping[int, int]
    total: int
    byte_ranges: Sequence[ByteRange]
    starts: Sequence[int]
    has_pushed: bool

    def read(self, arrays: Sequence[Array], start: int, stop: int) -> Sequence[Buffer]:
        """Bytes `start` to `stop` of a call's C-contiguous arrays."""
        starts, found = self.starts, []
        number = bisect_right(starts, start) - 1
        is_one = stop <= starts[number + 1]
        while start < stop:
            one, end = self.byte_ranges[number], starts[number + 1]
            memory: Any = arrays[one.position]
            if is_one or not one.whole or stop < end or start > starts[number]:
                low = one.start + start - starts[number]
                memory = memoryview(memory).cast("B")[low : low + (end if end < stop else stop) - start]
            found.append(memory)
            start, number = end, number + 1
        return found

    def write(self, arrays: Sequence[Array], start: int, stop: int, payload: memoryview) -> Sequence[ByteRange]:
        """Copies bytes `start` to `stop` to where they belong in a call's C-contiguous arrays: the ranges that
        have them."""
        starts, at = self.starts, 0
        first = number = bisect_right(starts, start) - 1
        while start < stop:
            one, end = self.byte_ranges[number], starts[number + 1]
            nbytes, low = (end if end < stop else stop) - start, one.start + start - starts[number]
            memory = memoryview(arrays[one.position]).cast("B")  # type: ignore[arg-type]  # an array is a buffer
            memory[low : low + nbytes] = payload[at : at + nbytes]
            start, at, number = end, at + nbytes, number + 1
        return self.byte_ranges[first:number]


def key_plan(routing: Routing, key_indices: Sequence[int]) -> KeyPlan:
    """The plan of the keys at these indices of the description, which are distinct."""
    byte_ranges, starts = [], [0]
    adjacent: list[tuple[int, int, int, int]] = []
    """Shard, bucket, first slice and stop."""
    for shard, bucket, first, position in sorted(
        (shard, routing.bucket_of[key_index], key_range.first, position)
        for position, key_index in enumerate(key_indices)
        for shard, key_range in routing.ranges[key_index].items()
    ):
        slices, key_range = routing.slices[key_indices[position]], routing.ranges[key_indices[position]][shard]
        begin, stop = slices.start(key_range.number), slices.start(key_range.number + key_range.stop - first)
        byte_ranges.append(ByteRange(position, begin, stop - begin == slices.nbytes))
        starts.append(starts[-1] + stop - begin)
        is_next = adjacent and (adjacent[-1][0], adjacent[-1][1], adjacent[-1][3]) == (shard, bucket, first)
        adjacent.append((shard, bucket, adjacent.pop()[2] if is_next else first, key_range.stop))
    segments: dict[int, list[PlanSegment]] = {}
    total = start = 0
    for shard, bucket, first, stop in adjacent:
        layout = routing.buckets[bucket]
        partition = layout.partitions[shard]
        bounds = partition.bounds[first : stop + 1] - partition.bounds[first]
        priorities = partition.priorities[first:stop]
        pushed, pulled = (
            None if codec is None else SliceCodec(codec, bounds // codec.dtype.itemsize)
            for codec in (layout.pushed, layout.pulled)
        )
        segments.setdefault(shard, []).append(
            PlanSegment(
                bucket=bucket,
                first=first,
                count=stop - first,
                number=total,
                bounds=bounds + start,
                priority=int(priorities[0]),
                priorities=None if priorities[0] == priorities[-1] else priorities,
                pushed=pushed,
                pulled=pulled,
            )
        )
        total += stop - first
        start += int(bounds[-1])
    return KeyPlan(
        segments=segments,
        asks={shard: [(one.bucket, one.first, one.count, 0) for one in some] for shard, some in segments.items()},
        counts={shard: sum(one.count for one in some) for shard, some in segments.items()},
        total=total,
        byte_ranges=byte_ranges,
        starts=starts,
        has_pushed=any(one.pushed is not None for some in segments.values() for one in some),
    )


# --- The keys of a store as its callers name them: found, checked, and remembered for every later call of them --------


NAMES_SHOWN: Final = 4

SMALL_BYTES: Final = 1 << 16
"""A message may have all of so much, and more."""

KEYS_KEPT: Final = 1 << 16
"""Keys in the lists that are remembered, beside four times those of the description: a program that trains has a list
for each key, and a few of several. A key in a list takes some 300 bytes."""

_BY_ROWS: Final = ("push", "pull", "pushpull", "pull_state", "set", "restore")
"""Calls that there are for rows of tables too."""

_PLAIN: Final = frozenset({str, int})
"""Types of keys of which equal ones are one key."""


class KeyList:
    """The distinct keys of a call. An operation is of keys of which none is a table, or of one table.

    `single`: one key was named, and no list: a call takes one array for it, and ends with one. `user_keys` are the keys
    as they were named, `key_indices` their indices in the description. `is_small`: a message may have all of it and
    more. `has_half`: users have one of them in 16 bits and the shards in 32. `not_pushed` are the keys to which the
    slot of the call does not contribute; `rows` has whether keys are tables, True and False where some are. The plan is
    `made` once, at the first call: two threads that make it at once make the same."""

    def __init__(
        self,
        keys: Sequence[KeyDescription],
        key_indices: Sequence[int],
        slot: int,
        *,
        user_keys: Sequence[object] = (),
        single: bool = False,
    ) -> None:
        self.keys, self.user_keys, self.single = tuple(keys), tuple(user_keys), single
        self.key_indices = tuple(key_indices)
        self.names = tuple(key.key for key in keys)
        self.dtypes: tuple[np.dtype[Any], ...] = tuple(np.dtype(key.dtype) for key in keys)
        self.shapes = tuple(tuple(key.shape) for key in keys)
        self.rows = frozenset(key.rows for key in keys)
        self.is_small = True not in self.rows and sum(key.nbytes for key in keys) <= SMALL_BYTES
        self.has_half = any(key.half for key in keys)
        self.not_pushed = tuple(key for key in keys if slot not in key.slots)
        self.made: KeyPlan | None = None

    def fitting(self, values: Any, *, writable: bool = False) -> list[Array] | None:
        """The arrays of a call, one a key, where all are NumPy's, C-contiguous and of the keys' dtypes and shapes."""
        if not self.single and (not isinstance(values, list | tuple) or len(values) != len(self.names)):
            return None
        arrays = [values] if self.single else [*values]
        for array, dtype, shape in zip(arrays, self.dtypes, self.shapes, strict=True):
            if type(array) is not np.ndarray or array.dtype != dtype or array.shape != shape:
                return None
            flags = array.flags
            if not flags.c_contiguous or (writable and not flags.writeable):
                return None
        return arrays

    def __str__(self) -> str:
        if len(self.names) == 1:
            return f"{'rows of ' if self.keys[0].rows else ''}key {self.names[0]!r}"
        shown = ", ".join(map(repr, self.names[:NAMES_SHOWN]))
        more = len(self.names) - NAMES_SHOWN
        return f"{len(self.names)} keys ({shown}{f' and {more} more' if more > 0 else ''})"


class Keys:
    """One slot's keys, by the names that users have for them, or with `by_name` by those of the store. An error begins
    with slot, call and key. Any thread may ask: those that make the same thing at once make it alike."""

    def __init__(self, description: StoreDescription, slot: int, *, by_name: bool = False) -> None:
        self.slot = slot
        self.description = description
        self.key_indices: dict[UserKey, int] = {
            key.key if by_name else user_key(key.key): index
            for index, key in enumerate(description.keys)
            if by_name or key.key != BARRIER_KEY
        }
        """The index of each in the description."""
        self._lists: dict[Any, KeyList] = {}
        self._count = 0
        """Keys that the lists have together."""

    @property
    def keys(self) -> tuple[UserKey, ...]:
        """All keys."""
        return tuple(self.key_indices)

    def call(self, call: str) -> str:
        """How an error of a call begins."""
        return f"slot {self.slot}: {call}"

    def where(self, call: str, key: object) -> str:
        """How an error of a call of a key begins."""
        return f"slot {self.slot}: {call} of key {key!r}"

    def index_of(self, key: object, call: str) -> int:
        """Where a key, of any kind, is in the description. Raises StoreRefusedError, as all calls here do."""
        found = self.key_indices.get(key) if type(key) in _PLAIN else None  # type: ignore[call-overload]  # it is one
        if found is None:
            try:
                found = self.key_indices.get(user_key(store_name(key)))
            except ValueError as error:
                raise StoreRefusedError(f"slot {self.slot}: {call}: {error}") from None
        if found is None:
            raise StoreRefusedError(f"{self.where(call, key)}: the store has no such key; {self._what_there_is(key)}")
        return found

    def find(self, key: object, call: str, *, rows: bool | None = None, pushes: bool = False) -> KeyDescription:
        """A key of any kind; a table where `rows`, none where that is False. One that the slot contributes to where it
        `pushes`."""
        found = self.description.keys[self.index_of(key, call)]
        if found.rows and rows is False:
            detail = f"say which rows, with {call}_rows" if call in _BY_ROWS else f"of tables there is no {call}"
            raise StoreRefusedError(f"{self.where(call, key)}: it is a table: {detail}")
        if rows and not found.rows:
            raise StoreRefusedError(f"{self.where(call, key)}: it is no table: call {call.removesuffix('_rows')}")
        if pushes and self.slot not in found.slots:
            raise StoreRefusedError(f"{self.where(call, key)}: only slots {list(found.slots)} contribute to it")
        return found

    def key_list(self, key: object, call: str, *, rows: bool | None = False, pushes: bool = False) -> KeyList:
        """One key, or several that are distinct, each as `find` finds it."""
        hashed: object = key
        if type(key) is not str and type(key) is not int:
            is_plain = (type(key) is list or type(key) is tuple) and _PLAIN.issuperset(map(type, key))
            hashed = tuple(key) if is_plain else None  # type: ignore[arg-type]  # it is a list, or a tuple
        found = None if hashed is None else self._lists.get(hashed)
        if found is None:
            found = self._new_list(key, call)
            if hashed is not None:
                self._keep(hashed, found)
        if (rows is not None and (not rows) in found.rows) or (pushes and found.not_pushed):
            for one in found.user_keys:
                self.find(one, call, rows=rows, pushes=pushes)
        return found

    def _new_list(self, key: object, call: str) -> KeyList:
        single = isinstance(key, str | int | np.integer)
        if not single and (not isinstance(key, Sequence) or isinstance(key, bytes | bytearray | memoryview)):
            raise StoreRefusedError(f"{self.call(call)}: a key or a list of keys, not {type(key).__name__}")
        user_keys = [key] if single else list(key)  # type: ignore[call-overload]  # it is a sequence
        indices = [self.index_of(one, call) for one in user_keys]
        if len({*indices}) < len(indices):
            twice = next(index for number, index in enumerate(indices) if index in indices[:number])
            name = user_key(self.description.keys[twice].key)
            raise StoreRefusedError(f"{self.call(call)}: key {name!r} is named twice")
        keys = [self.description.keys[index] for index in indices]
        return KeyList(keys, indices, self.slot, user_keys=user_keys, single=single)

    def _keep(self, hashed: object, found: KeyList) -> None:
        """All are forgotten when they have too many keys together."""
        self._count += len(found.keys)
        if self._count > KEYS_KEPT + 4 * len(self.key_indices):
            self._lists.clear()
            self._count = len(found.keys)
        self._lists[hashed] = found

    def each(self, call: str, keys: KeyList, value: Any) -> list[Any]:
        """A call's value for each of its keys, one where one key was given; None stands for nothing for all. Raises
        StoreRefusedError where there are more values or fewer."""
        if keys.single:
            return [value]
        count = len(keys.names)
        if value is not None and (not isinstance(value, list | tuple) or len(value) != count):
            detail = f"{len(value)} values" if isinstance(value, list | tuple) else type(value).__name__
            raise StoreRefusedError(f"{self.call(call)}: {count} keys take a list of as many values, not {detail}")
        return [None] * count if value is None else list(value)

    def state_of(self, key: KeyDescription) -> tuple[str, ...]:
        """What the rule keeps beside a key, by name, in the order of the store; nothing where no rule updates it."""
        return tuple(rule_of(self.description, key).state) if key.update is Update.RULE else ()

    def _what_there_is(self, key: object) -> str:
        names = self.keys
        twin = str(key) if isinstance(key, int) else int(key) if isinstance(key, str) and key.isdecimal() else None
        if twin in names:
            return f"there is {twin!r}, which is another"
        return f"there are {', '.join(map(repr, names[:8]))}{', ...' if len(names) > 8 else ''}" if names else "none"
