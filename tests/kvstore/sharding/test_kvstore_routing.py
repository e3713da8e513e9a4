"""Routing: the cut of keys, and how slices are spread over shards."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_cluster import key_of, slices_on, store_of, table_of
from weft_graph.program import Update
from weft_kvstore.description.records import KeyDescription, StoreDescription
from weft_kvstore.sharding import KeyRange, routing_of, slices_of

sizes = st.lists(st.integers(0, 5000), min_size=1, max_size=30)


def described(elements: list[int], shards: int, slice_bytes: int = 1024) -> StoreDescription:
    keys = [key_of(f"k{number}", (size,), 1) for number, size in enumerate(elements)]
    return store_of(keys, slots=1, shards=shards, slice_bytes=slice_bytes)


@given(sizes, st.integers(1, 7), st.sampled_from([1, 64, 1024, 100_000]))
def test_every_slice_is_on_exactly_one_shard_and_a_shard_has_adjacent_ones(
    elements: list[int], shards: int, slice_bytes: int
) -> None:
    description = described(elements, shards, slice_bytes)
    routing = routing_of(description)
    for key, cut, ranges in zip(description.keys, routing.slices, routing.ranges, strict=True):
        there = [one.number + at for one in ranges.values() for at in range(one.stop - one.first)]
        assert sorted(there) == list(range(cut.count))
        assert sum(one.end - one.start for one in ranges.values()) == key.size
        assert (np.diff(cut.bounds(0, cut.count)) > 0).all()
        for one in ranges.values():
            assert (4 * one.start, 4 * one.end) == (cut.start(one.number), cut.start(one.number + one.stop - one.first))


@given(sizes, st.integers(1, 7), st.randoms(use_true_random=False))
def test_bytes_are_spread_to_within_a_slice_whatever_the_order_of_keys(
    elements: list[int], shards: int, order: random.Random
) -> None:
    order.shuffle(elements)
    description = described(elements, shards)
    routing = routing_of(description)
    loads = [0] * shards
    for ranges in routing.ranges:
        for shard, one in ranges.items():
            loads[shard] += 4 * (one.end - one.start)
    assert sum(loads) == sum(key.nbytes for key in description.keys)
    assert max(loads) - min(loads) <= description.slice_bytes


@given(sizes, st.integers(1, 7))
def test_bounds_of_slices_do_not_depend_on_the_number_of_shards(elements: list[int], shards: int) -> None:
    assert routing_of(described(elements, shards)).slices == routing_of(described(elements, 1)).slices


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64"])
@pytest.mark.parametrize("slice_bytes", [1, 7, 64, 1000])
def test_a_slice_holds_whole_elements(dtype: str, slice_bytes: int) -> None:
    key = msgspec.structs.replace(key_of("k", (31, 7), 1), dtype=dtype)
    cut = slices_of(key, slice_bytes)
    itemsize = np.dtype(dtype).itemsize
    lengths = np.diff(cut.bounds(0, cut.count))
    assert ((lengths % itemsize == 0) & (lengths > 0)).all()
    assert cut.start(cut.count) == key.nbytes


def test_sizes_are_not_cut_off_at_two_gib_or_four() -> None:
    """2**40 elements are described and cut; nothing of their size is made."""
    key: KeyDescription = key_of("table", (2**20, 2**20), 1)
    cut = slices_of(key, 1 << 24)
    assert key.nbytes == 2**42
    assert cut.count == 2**18
    assert cut.start(cut.count) == 2**42
    assert cut.bounds(cut.count - 1, cut.count).tolist() == [2**42 - (1 << 24), 2**42]


def test_a_bucket_has_its_keys_by_priority_and_numbers_each_shards_slices_from_0() -> None:
    """The example of docs/wire.md, worked out there by hand."""
    keys = [key_of("a", (5,), 1, priority=1), key_of("b", (2,), 1, priority=0)]
    routing = routing_of(store_of(keys, slots=1, shards=2, slice_bytes=8))
    (bucket,) = routing.buckets
    assert bucket.keys == (1, 0)
    assert {shard: slices_on(partition) for shard, partition in bucket.partitions.items()} == {
        0: [(0, 1), (0, 2)],
        1: [(1, 0), (0, 0)],
    }
    assert [[one.key_index for one in bucket.partitions[1].ranges_in(*some)] for some in ((0, 1), (1, 2), (0, 2))] == [
        [1],
        [0],
        [1, 0],
    ]
    assert {shard: partition.bounds.tolist() for shard, partition in bucket.partitions.items()} == {
        0: [0, 8, 12],
        1: [0, 8, 16],
    }
    assert {shard: partition.priorities.tolist() for shard, partition in bucket.partitions.items()} == {
        0: [1, 1],
        1: [0, 1],
    }
    assert routing.ranges == (
        {0: KeyRange(0, 0, 2, 1, 2, 5), 1: KeyRange(0, 1, 2, 0, 0, 2)},
        {1: KeyRange(1, 0, 1, 0, 0, 2)},
    )


def test_keys_are_of_one_bucket_where_they_are_updated_alike() -> None:
    like = key_of("a", (2,), 2)
    other = {"dtype": "float64", "slots": (0,), "update": Update.MEAN, "multipliers": {"lr": 2.0}, "whole": True}
    keys = [like, msgspec.structs.replace(like, key="b", shape=(9, 9), priority=7)]
    keys += [msgspec.structs.replace(like, key=f"not-{field}", **{field: value}) for field, value in other.items()]
    keys += [table_of("t", (4, 2), 2), table_of("u", (4, 2), 2)]
    buckets = routing_of(store_of(keys, slots=2, shards=3)).buckets
    assert [bucket.keys for bucket in buckets] == [(0, 1), *[(place,) for place in range(2, len(keys))]]
    assert [bucket.number for bucket in buckets] == list(range(len(buckets)))
    assert [bool(bucket.partitions) for bucket in buckets[-3:]] == [True, False, False]


def test_a_large_key_is_on_every_shard() -> None:
    (ranges,) = routing_of(described([1 << 16], 4)).ranges
    assert sorted(ranges) == [0, 1, 2, 3]
    assert {one.stop - one.first for one in ranges.values()} == {64}
