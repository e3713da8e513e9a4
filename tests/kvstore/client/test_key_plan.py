"""Where keys lie, as segments: against each slice looked up by itself; and what segments have of a call's arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_cluster import key_of, slices_on, store_of, table_of
from weft_kvstore.client.plan import ByteRange, KeyPlan, PlanSegment, key_plan
from weft_kvstore.description.records import CompressionDescription, Kind, StoreCompression, StoreDescription
from weft_kvstore.sharding import Routing, routing_of

Array = np.ndarray[Any, np.dtype[Any]]

TWO_BIT = CompressionDescription(Kind.TWO_BIT, threshold=0.5)
BF16 = CompressionDescription(Kind.BF16, residual=False)


@dataclass(frozen=True)
class Call:
    """Some keys of a store, in the order of a call."""

    description: StoreDescription
    places: tuple[int, ...]

    @property
    def routing(self) -> Routing:
        return routing_of(self.description)

    @property
    def dtypes(self) -> list[np.dtype[Any]]:
        return [np.dtype(self.description.keys[place].dtype) for place in self.places]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [tuple(self.description.keys[place].shape) for place in self.places]

    def plan(self) -> KeyPlan:
        return key_plan(self.routing, self.places)

    def arrays(self) -> list[Array]:
        """Values whose every byte says where it is from."""
        generator = np.random.default_rng(len(self.places))
        return [
            np.frombuffer(generator.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        ]


@st.composite
def calls(draw: st.DrawFn) -> Call:
    keys = []
    for number in range(draw(st.integers(1, 8))):
        size = draw(st.sampled_from([0, 1, 2, 3, 7, 40, 500]))
        key = key_of(f"k{number}", (size,), 1, priority=draw(st.integers(-1, 1)))
        dtype = draw(st.sampled_from(["float32", "float32", "float64"]))
        keys.append(msgspec.structs.replace(key, dtype=dtype, whole=draw(st.sampled_from([False, False, True]))))
    compression = draw(st.sampled_from([None, StoreCompression(gradients=TWO_BIT, weights=BF16, least_bytes=16)]))
    description = store_of(
        [*keys, table_of("t", (4, 2), 1)],
        slots=1,
        shards=draw(st.integers(1, 3)),
        slice_bytes=draw(st.sampled_from([1, 16, 100, 4096])),
    )
    places = draw(st.lists(st.integers(0, len(keys) - 1), unique=True, max_size=len(keys)))
    return Call(msgspec.structs.replace(description, compression=compression), tuple(places))


Slice = tuple[int, int]
"""A key's place and the slice's number in it."""


def parts_of(plan: KeyPlan, segment: PlanSegment) -> list[tuple[ByteRange, int]]:
    """The parts of keys in a segment, each with its bytes."""
    return [
        (part, stop - start)
        for part, (start, stop) in zip(plan.byte_ranges, pairwise(plan.starts), strict=True)
        if segment.bounds[0] <= start < segment.bounds[-1]
    ]


def slices_by_part(call: Call, plan: KeyPlan, segment: PlanSegment) -> list[Slice]:
    """The slices of a segment by its parts."""
    found: list[Slice] = []
    for part, nbytes in parts_of(plan, segment):
        place = call.places[part.position]
        cut = call.routing.slices[place]
        assert part.whole == (nbytes == call.description.keys[place].nbytes)
        index, stop = part.start // cut.step_bytes, part.start + nbytes
        while cut.start(index) < stop:
            assert part.start <= cut.start(index) < cut.start(index + 1) <= stop
            found.append((place, index))
            index += 1
    return found


@given(calls())
def test_a_plan_has_each_slice_of_its_keys_once_where_its_shard_has_it(call: Call) -> None:
    routing, plan, seen = call.routing, call.plan(), list[Slice]()
    for shard, segments in plan.segments.items():
        for segment in segments:
            held, slices = routing.buckets[segment.bucket].partitions[shard], slices_by_part(call, plan, segment)
            here = slice(segment.first, segment.first + segment.count)
            assert slices == slices_on(held)[here]
            assert segment.count == len(slices) == len(segment.bounds) - 1 > 0
            assert np.diff(segment.bounds).tolist() == np.diff(held.bounds)[here].tolist()
            priorities = held.priorities[here].tolist()
            assert segment.priority == priorities[0]
            assert (
                [segment.priority] * segment.count if segment.priorities is None else segment.priorities.tolist()
            ) == priorities
            assert (segment.priorities is None) == (len(set(priorities)) == 1)
            seen += slices
        assert plan.counts[shard] == sum(segment.count for segment in segments)
    assert sorted(seen) == sorted((place, one) for place in call.places for one in range(routing.slices[place].count))
    assert plan.total == len(seen) == sum(plan.counts.values())


@given(calls())
def test_segments_are_as_long_as_can_be_and_their_slices_and_bytes_are_numbered_through(call: Call) -> None:
    plan, number, start = call.plan(), 0, 0
    for some in plan.segments.values():
        for segment in some:
            assert (segment.number, segment.bounds[0]) == (number, start)
            number, start = number + segment.count, int(segment.bounds[-1])
        places = [(one.bucket, one.first, one.first + one.count) for one in some]
        assert places == sorted(places)
        assert all(one[0] < other[0] or one[2] < other[1] for one, other in pairwise(places)), "two that touch are one"
    assert (plan.total, plan.starts[-1]) == (number, start)


@given(calls())
def test_a_plan_says_what_travels_encoded_and_where_its_bytes_lie(call: Call) -> None:
    plan, compressed = call.plan(), call.description.compression
    segments = [segment for some in plan.segments.values() for segment in some]
    for segment in segments:
        position = parts_of(plan, segment)[0][0].position
        wanted = compressed is not None and call.description.keys[call.places[position]].nbytes >= 16
        for codec in (segment.pushed, segment.pulled):
            assert (codec is not None) == wanted
            if codec is not None:
                dtype = call.dtypes[position]
                assert codec.codec.dtype == dtype
                assert (codec.bounds * dtype.itemsize).tolist() == (segment.bounds - segment.bounds[0]).tolist()
    assert plan.has_pushed == any(segment.pushed is not None for segment in segments)


@given(calls(), st.data())
def test_any_bytes_of_a_call_are_those_of_its_keys_parts_one_behind_the_other(call: Call, data: st.DataObject) -> None:
    arrays, plan = call.arrays(), call.plan()
    raw, source = [array.tobytes() for array in arrays], partial(plan.read, arrays)
    parts = [one for some in plan.segments.values() for segment in some for one in parts_of(plan, segment)]
    wanted = b"".join(raw[part.position][part.start : part.start + nbytes] for part, nbytes in parts)
    assert len(wanted) == sum(map(len, raw)) == plan.starts[-1]
    for _ in range(5 if wanted else 0):  # What was cut before changes nothing: a lost frame is made again.
        start = data.draw(st.integers(0, len(wanted) - 1))
        stop = data.draw(st.integers(start + 1, len(wanted)))
        assert b"".join(map(bytes, source(start, stop))) == wanted[start:stop]
    assert not wanted or b"".join(map(bytes, source(0, len(wanted)))) == wanted


def test_bytes_of_a_call_are_the_callers_own_and_not_a_copy() -> None:
    call = Call(store_of([key_of("a", (4,), 1), key_of("b", (4,), 1)], slots=1, shards=1), (0, 1))
    arrays = [np.zeros(4, np.float32), np.zeros(4, np.float32)]
    source = partial(call.plan().read, arrays)
    arrays[1][0] = 1
    assert b"".join(map(bytes, source(16, 20))) == np.float32(1).tobytes()


@pytest.mark.parametrize("places", [(), (0,), (0, 1)])
def test_keys_without_elements_have_no_run(places: tuple[int, ...]) -> None:
    keys = [key_of("none", (0,), 1), key_of("no rows", (0, 5), 1), key_of("some", (3,), 1)]
    plan = Call(store_of(keys, slots=1, shards=2), places).plan()
    assert (plan.segments, plan.counts, plan.total, plan.byte_ranges) == ({}, {}, 0, [])
    assert not plan.has_pushed


def test_neighbours_in_a_bucket_are_one_run_in_whatever_order_a_call_names_them() -> None:
    """The most urgent first, each where its array is in the call."""
    keys = [key_of("a", (2,), 1, priority=2), key_of("b", (3,), 1, priority=0), key_of("c", (4,), 1, priority=1)]
    plan = Call(store_of(keys, slots=1, shards=1), (2, 0, 1)).plan()
    ((segment,),) = plan.segments.values()
    assert [part.position for part in plan.byte_ranges] == [2, 0, 1]
    assert plan.starts == [0, 12, 28, 36]
    assert segment.priorities is not None
    assert segment.priorities.tolist() == [0, 1, 2]
    ((first, last),) = Call(store_of(keys, slots=1, shards=1), (0, 1)).plan().segments.values()
    assert [(segment.first, segment.number) for segment in (first, last)] == [(0, 0), (2, 1)]
