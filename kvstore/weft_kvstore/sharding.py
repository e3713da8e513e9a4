"""How keys are divided into slices, buckets and rows, and which shard has which: pure functions of the description."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np

from weft_graph.weft_domain import ID_BYTES
from weft_kvstore.arrays import Array
from weft_kvstore.compression import Codec, Half, TopK, TwoBit
from weft_kvstore.description.records import (
    CompressionDescription,
    GrowthDescription,
    KeyDescription,
    Kind,
    StoreDescription,
    codecs_of,
)
from weft_kvstore.rows.index import shard_of

# --- The slices of a key: a function of its shape, its dtype and the job's slice size alone ---------------------------


@dataclass(frozen=True, slots=True)
class KeySlices:
    """The slices of one key: `count` slices of `step_bytes` bytes each; the last one has the rest."""

    nbytes: int
    step_bytes: int
    count: int

    def start(self, index: int) -> int:
        """Where slice `index` begins in the key's value, bytes; for index = count where the last one ends."""
        return min(index * self.step_bytes, self.nbytes)

    def bounds(self, first: int, stop: int) -> Array:
        """Where slices `first` to `stop` begin, and where the last one ends (stop - first + 1) int64, bytes."""
        return np.minimum(np.arange(first, stop + 1) * self.step_bytes, self.nbytes)


def slices_of(key: KeyDescription, slice_bytes: int) -> KeySlices:
    """The slices of a key: whole elements, at least one to a slice; none for an empty value, nor for a table."""
    itemsize = np.dtype(key.dtype).itemsize
    step = max(slice_bytes // itemsize, 1) * itemsize
    nbytes = 0 if key.rows else key.nbytes
    return KeySlices(nbytes, step, -(-nbytes // step))


# --- How rows of a table are spread over shards and sent in chunks: a function of the description ---------------------
# Row r is on shard r % shards, with index r // shards there. Of a growing table the shard is a hash of the id, which is
# any uint64, and the index is the id itself. A chunk of rows that a client sends is ids, as int64 or uint64, and
# values; adjacent chunks that travel together are [ids of all][values of all]. A chunk of rows that a shard sends is
# values, in the order of the ids that were asked for. Every chunk but the last is full, so sizes tell bounds.


MOST_ROWS_A_CALL: Final = 1 << 22
"""A call may pull so many rows, or push them to a growing table. In a table of fixed size no more can be named than it
has."""

FEW_SHARDS: Final = 4
"""Up to so many shards, all ids are compared with each shard's number; with more, they are sorted by shard."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """A table's rows: `width` elements each. `rows_up`, `rows_down`: rows of a full chunk to a shard, and from it;
    `ids_up`: ids of a full chunk of a pull."""

    rows: int
    width: int
    dtype: np.dtype[Any]
    shards: int
    rows_up: int
    rows_down: int
    ids_up: int
    growth: GrowthDescription | None = None
    id_dtype: np.dtype[Any] = field(init=False)
    """What ids are: any 64-bit number where the table grows."""
    row_bytes: int = field(init=False)
    chunk_bytes: int = field(init=False)
    """Of a full chunk to a shard."""

    def __post_init__(self) -> None:
        row_bytes = self.width * self.dtype.itemsize
        object.__setattr__(self, "id_dtype", np.dtype(np.int64 if self.growth is None else np.uint64))
        object.__setattr__(self, "row_bytes", row_bytes)
        object.__setattr__(self, "chunk_bytes", self.rows_up * (ID_BYTES + row_bytes))

    def rows_on(self, shard: int) -> int:
        """How many rows a shard has; of a growing table, how many one call may name there."""
        return len(range(shard, self.rows, self.shards)) if self.growth is None else MOST_ROWS_A_CALL

    def bytes_on(self, shard: int) -> int:
        """The bytes of so many rows; 0 where the shard has none."""
        return self.rows_on(shard) * self.row_bytes

    def shards_of(self, ids: Array) -> Array:
        """The shards (n) int64 of ids (n)."""
        if self.growth is not None:
            return shard_of(ids.view(np.uint64), self.shards)
        if self.shards & (self.shards - 1) == 0:
            low: Array = ids & (self.shards - 1)  # The remainder, at a tenth of the cost.
            return low
        found: Array = ids % self.shards
        return found

    def by_shard(self, ids: Array) -> Sequence[Array | None]:
        """For each shard the positions (m) int64 of the ids (n) that are its rows, ascending; None: all."""
        if self.shards == 1:
            return (None,)
        shards = self.shards_of(ids)
        if self.shards <= FEW_SHARDS:
            return [(shards == shard).nonzero()[0] for shard in range(self.shards)]
        order = np.argsort(shards.astype(np.uint16 if self.shards <= 1 << 16 else np.int64), kind="stable")
        return np.split(order, np.cumsum(np.bincount(shards, minlength=self.shards))[:-1])

    def ids_at(self, shard: int, indices: Array) -> Array:
        """The ids (n) of a shard's rows, by their indices (n) there."""
        return indices if self.growth is not None else indices * self.shards + shard

    def indices_of(self, ids: Array) -> Array:
        """The indices (n) that rows of ids (n) have on their shards: a new array."""
        return ids.copy() if self.growth is not None or self.shards == 1 else ids // self.shards


def row_layout(key: KeyDescription, slice_bytes: int, shards: int) -> RowLayout:
    """The layout of a table: at least one row to a chunk."""
    dtype = np.dtype(key.dtype)
    width = math.prod(key.shape[1:])
    row_bytes = width * dtype.itemsize
    up = max(slice_bytes // (ID_BYTES + row_bytes), 1)
    down = max(slice_bytes // row_bytes, 1) if row_bytes else 1
    return RowLayout(key.shape[0], width, dtype, shards, up, down, max(slice_bytes // ID_BYTES, 1), key.growth)


def chunks_of(count: int, chunk_rows: int) -> int:
    """How many chunks so many rows take; none at all is one empty chunk."""
    return max(-(-count // chunk_rows), 1)


# --- Buckets: keys that a shard stores and updates together -----------------------------------------------------------
# Keys that are updated alike (same dtype, slots, update, multipliers, compression) are in one bucket, the most urgent
# first, in one flat array, so that any range of slices is updated at once. A key that is `whole`, and a table,
# are a bucket of their own. Buckets are numbered in the order in which their first keys are described.


class KeyRange(NamedTuple):
    """The slices of a key on a shard: slices `first` to `stop` of its bucket there, which are the key's slices from
    `number` on and its elements `start` to `end`. `key_index` is the key's in the description."""

    key_index: int
    first: int
    stop: int
    number: int
    start: int
    end: int


_FIRST: Final = itemgetter(1)


@dataclass(frozen=True, slots=True, eq=False)
class BucketPartition:
    """The slices of a bucket on a shard, numbered from 0, those of each key together. Slice i has its key's priority
    `priorities[i]`, and lies at bytes `bounds[i]` to `bounds[i + 1]` of the bucket's values here.

    Priorities ascend. Both arrays are int64.
    """

    ranges: Sequence[KeyRange]
    priorities: Array
    bounds: Array

    def __len__(self) -> int:
        return len(self.priorities)

    def ranges_in(self, first: int, stop: int) -> Sequence[KeyRange]:
        """The keys of which some of these slices are."""
        return self.ranges[
            bisect_right(self.ranges, first, key=_FIRST) - 1 : bisect_left(self.ranges, stop, key=_FIRST)
        ]


@dataclass(frozen=True, slots=True, eq=False)
class BucketLayout:
    """`keys`: the indices of its keys in the description, in the order in which they lie. `partitions` by shard; a
    table has none, for its rows are numbered by their ids. `pushed` and `pulled`: how its gradients travel, and its
    values; None as they are."""

    number: int
    keys: tuple[int, ...]
    partitions: Mapping[int, BucketPartition]
    pushed: Codec | None
    pulled: Codec | None


def _bucket_key(description: StoreDescription, key_index: int, key: KeyDescription) -> Any:
    """Equal for keys that are in one bucket."""
    if key.rows or key.whole:
        return key_index
    multipliers = tuple(sorted(key.multipliers.items()))
    return key.dtype, key.slots, key.update, key.staleness, multipliers, codecs_of(key, description.compression)


def codec_of(description: CompressionDescription, dtype: np.dtype[Any]) -> Codec:
    """The codec of a checked description, for a key of that dtype."""
    if description.kind is Kind.TWO_BIT:
        assert description.threshold is not None
        return TwoBit(dtype, description.threshold)
    if description.kind is Kind.TOP_K:
        return TopK(dtype, ratio=description.ratio, count=description.count)
    return Half(dtype, description.kind.value, residual=description.residual)


def _partition(
    keys: Sequence[KeyDescription], slices: Sequence[KeySlices], owned: Sequence[tuple[int, range]]
) -> BucketPartition:
    """The slices that a shard has of a bucket: ranges of the slices of its keys, by index."""
    ranges: list[KeyRange] = []
    bounds, first = [np.zeros(1, np.int64)], 0
    for key_index, some in owned:
        own = slices[key_index].bounds(some.start, some.stop)
        start, end = (own[[0, -1]] // np.dtype(keys[key_index].dtype).itemsize).tolist()
        ranges.append(KeyRange(key_index, first, first + len(some), some.start, start, end))
        bounds.append(own[1:] - own[0] + bounds[-1][-1])
        first += len(some)
    priorities = np.repeat([keys[key_index].priority for key_index, _ in owned], [len(some) for _, some in owned])
    return BucketPartition(ranges, priorities, np.concatenate(bounds))


# --- Which shard has which slices, and where: a pure function of the description --------------------------------------
# Bounds of slices depend on shape, dtype and the job's slice size alone, so sums do not depend on the number of shards.
# Each slice goes to the shard with the fewest bytes so far, so loads differ by at most one slice; within a key, slices
# of one shard are then made adjacent, so that they travel and are copied as one segment. A key that is `whole` has all
# its slices on one shard. A table is spread by rows, evenly of itself: see `row_layout`.


@dataclass(frozen=True, slots=True, eq=False)
class Routing:
    """`shards` is their number. `slices` by key's index; `ranges[key][shard]` are the key's slices on a shard
    that has some. `tables`, by key's index, have neither. `buckets` are groups of keys: key `key_index` is in bucket
    `bucket_of[key_index]`."""

    shards: int
    slices: tuple[KeySlices, ...]
    ranges: tuple[Mapping[int, KeyRange], ...]
    tables: Mapping[int, RowLayout]
    buckets: tuple[BucketLayout, ...]
    bucket_of: tuple[int, ...]


def routing_of(description: StoreDescription) -> Routing:
    """The routing that every process of this description computes alike."""
    loads = [(0, shard) for shard in range(len(description.shards))]
    slices = tuple(slices_of(key, description.slice_bytes) for key in description.keys)
    tables = {
        key_index: row_layout(key, description.slice_bytes, len(description.shards))
        for key_index, key in enumerate(description.keys)
        if key.rows
    }
    assigned = [_assign(one, loads, whole=key.whole) for key, one in zip(description.keys, slices, strict=True)]
    groups: dict[Any, list[int]] = {}
    for key_index, key in enumerate(description.keys):
        groups.setdefault(_bucket_key(description, key_index, key), []).append(key_index)
    buckets: list[BucketLayout] = []
    ranges: tuple[dict[int, KeyRange], ...] = tuple({} for _ in description.keys)
    bucket_of = [0] * len(description.keys)
    for number, key_indices in enumerate(groups.values()):
        key_indices.sort(key=lambda key_index: description.keys[key_index].priority)
        key = description.keys[key_indices[0]]
        partitions: dict[int, BucketPartition] = {}
        for shard in range(len(description.shards)):
            owned = [
                (key_index, assigned[key_index][shard]) for key_index in key_indices if shard in assigned[key_index]
            ]
            if owned:
                partitions[shard] = _partition(description.keys, slices, owned)
                for key_range in partitions[shard].ranges:
                    ranges[key_range.key_index][shard] = key_range
        for key_index in key_indices:
            bucket_of[key_index] = number
        codecs = [
            None if one is None else codec_of(one, np.dtype(key.dtype))
            for one in codecs_of(key, description.compression)
        ]
        buckets.append(BucketLayout(number, tuple(key_indices), partitions, *codecs))
    return Routing(len(description.shards), slices, ranges, tables, tuple(buckets), tuple(bucket_of))


def _assign(slices: KeySlices, loads: list[tuple[int, int]], *, whole: bool) -> Mapping[int, range]:
    """Assigns each slice, or all of them, to the shard with the fewest bytes; `loads` is a heap of (bytes, shard)."""
    if whole and slices.count:
        load, shard = loads[0]
        heapq.heapreplace(loads, (load + slices.nbytes, shard))
        return {shard: range(slices.count)}
    counts: dict[int, int] = {}
    shard = 0
    for index in range(slices.count):
        load, shard = loads[0]
        heapq.heapreplace(loads, (load + slices.start(index + 1) - slices.start(index), shard))
        counts[shard] = counts.get(shard, 0) + 1
    # The last slice may be the shorter one: it stays where it was assigned, so that shard's range comes last.
    order = sorted(counts, key=lambda one: (one == shard, one))
    ranges: dict[int, range] = {}
    begin = 0
    for one in order:
        ranges[one] = range(begin, begin + counts[one])
        begin += counts[one]
    return ranges
