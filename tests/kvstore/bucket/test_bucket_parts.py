"""What a bucket is made of, each part by itself: ranges, pending segments, numbering, blocks of values, sums, steps."""

from __future__ import annotations

import random
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_cluster import advanced, constant, key_of, open_pulls, store_of, stores_of
from weft_graph.program import Update
from weft_kernels.rules.record import Rule
from weft_kvstore.arrays import Ranges, Segment, ranges_alike, ranges_where
from weft_kvstore.bucket import values as bucket_values
from weft_kvstore.bucket.bucket import Bucket
from weft_kvstore.bucket.steps import PullWait
from weft_kvstore.bucket.values import Block, BucketValues, Gradient, PendingSegments, Pin
from weft_kvstore.description.records import Merge, Mode
from weft_kvstore.errors import PushRefusedError
from weft_kvstore.settings import COPIED_BYTES
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.wire.messages import Reading
from weft_kvstore.wire.outbox import BufferSource

some_range = st.tuples(st.integers(0, 30), st.integers(1, 10)).map(lambda one: (one[0], one[0] + one[1]))


@given(st.lists(st.tuples(st.booleans(), some_range), max_size=20), some_range)
def test_ranges_are_a_set_of_numbers(changes: list[tuple[bool, tuple[int, int]]], asked: tuple[int, int]) -> None:
    ranges, plain = Ranges(), set[int]()
    for adds, (first, stop) in changes:
        (ranges.add if adds else ranges.remove)(first, stop)
        plain = plain | set(range(first, stop)) if adds else plain - set(range(first, stop))
    block = list(ranges)
    assert [number for first, stop in block for number in range(first, stop)] == sorted(plain)
    assert all(one[1] < other[0] for one, other in pairwise(block))
    here = [number for first, stop in ranges.overlaps(*asked) for number in range(first, stop)]
    assert here == sorted(plain & set(range(*asked)))


@given(st.lists(st.integers(0, 2), max_size=20), st.integers(0, 5))
def test_runs_of_equal_numbers_are_found(values: list[int], offset: int) -> None:
    array = np.array(values, np.int64)
    segments = ranges_alike(array, offset)
    assert [value for first, stop, value in segments for _ in range(first, stop)] == values
    assert all(one[1] == other[0] and one[2] != other[2] for one, other in pairwise(segments))
    ones = ranges_where(array == 1, offset)
    assert ones == [(first, stop) for first, stop, value in segments if value == 1]


def bounds_of(sizes: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.integers(0, 1 << 30))
def test_a_shelf_gives_each_slices_elements_once(sizes: list[int], seed: int) -> None:
    choose, bounds, count = random.Random(seed), bounds_of(sizes), len(sizes)
    pending, plain = PendingSegments(bounds), dict[int, list[float] | None]()
    for _ in range(20):
        first = choose.randrange(count)
        stop = choose.randint(first + 1, count)
        if choose.random() < 0.5 and not any(one in plain for one in range(first, stop)):
            elements = np.random.default_rng(choose.randrange(99)).standard_normal(int(bounds[stop] - bounds[first]))
            segment = Segment(first, stop, None if choose.random() < 0.2 else elements)
            pending.put(segment)
            for one in range(first, stop):
                part = elements[bounds[one] - bounds[first] : bounds[one + 1] - bounds[first]]
                plain[one] = None if segment.elements is None else part.tolist()
            continue
        whole = pending.within(first, stop)
        assert {one for segment in whole for one in range(segment.first, segment.stop)} >= plain.keys() & set(
            range(first, stop)
        )
        assert all(segment.first < stop and first < segment.stop for segment in whole)
        found: dict[int, list[float] | None] = {}
        for segment in pending.take(first, stop):
            assert first <= segment.first < segment.stop <= stop
            for one in range(segment.first, segment.stop):
                (part,) = [pending.narrow(segment, one, one + 1).elements]
                found[one] = None if part is None else part.tolist()
        assert found == {one: plain.pop(one) for one in range(first, stop) if one in plain}
    assert len(pending) == len(plain)


@pytest.fixture
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_values, "BLOCK_BYTES", 32)


@pytest.mark.usefixtures("_small_blocks")
def test_a_block_is_copied_only_where_slices_that_are_lent_are_written() -> None:
    """Blocks of two slices of 16 bytes; the last one, of 40, is a block of its own."""
    values = BucketValues(np.arange(30, dtype=np.float32), bounds_of([4, 4, 4, 4, 4, 10]))
    blocks = [one[:3] for one in values.sections(1, 6)]
    assert [(low, high) for low, high, _ in blocks] == [(1, 2), (2, 4), (4, 5), (5, 6)]
    arrays = [block.array for _, _, block in blocks]
    pin = Pin(blocks[1][2], 1, 1)
    for first, stop, copies in [(2, 3, [False] * 4), (0, 3, [False] * 4), (3, 4, [False, True, False, False])]:
        for low, high, elements in values.written(first, stop):
            elements[:] = -1.0
            assert elements.size == values.bounds[high] - values.bounds[low]
        now = [
            block.array is not before for (_, _, block, *_), before in zip(values.sections(1, 6), arrays, strict=True)
        ]
        assert now == copies
    assert arrays[1][4:].tolist() == [12.0, 13.0, 14.0, 15.0], "what is lent is as it was"
    joined = np.concatenate([elements for _, _, elements in values.written(0, 6)])
    assert joined.tolist() == [-1.0] * 16 + list(range(16, 30))
    pin.release(0, 1)
    assert not blocks[1][2].pinned.any()
    ((_, _, second, _, bounds),) = values.sections(2, 4)
    assert bounds.tolist() == [second.start, second.start + 16, second.start + 32]


def test_what_is_remembered_of_runs_is_bounded_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_values, "MOST_CUTS", 100 * bucket_values.A_CUT)
    values = BucketValues(np.arange(200, dtype=np.float32), bounds_of([1] * 200))
    for first in range(200):
        for stop in (first + 1, 200):
            assert [float(one) for _, _, some in values.written(first, stop) for one in some] == [*range(first, stop)]
            numbers = [array.size for cuts in values._cuts.values() for cut in cuts for array in [cut.bounds]]
            assert sum(numbers) <= 100 * bucket_values.A_CUT
            assert len(numbers) <= 100


@given(st.lists(st.integers(1, 4), min_size=1, max_size=8), st.integers(0, 1 << 30))
def test_sums_are_made_from_the_left_whatever_the_cuts(sizes: list[int], seed: int) -> None:
    """Also where some slots have nothing for some slices, and some gradients are read-only or go beyond the sum."""
    choose, bounds, generator = random.Random(seed), bounds_of(sizes), np.random.default_rng(seed)
    first = choose.randrange(len(sizes))
    stop = choose.randint(first + 1, len(sizes))
    totals: dict[int, np.ndarray] = {}
    layers: list[list[Segment]] = []
    slots = choose.randint(1, 4)
    everywhere = choose.randrange(slots)
    for number in range(slots):
        magnitude = 10.0 ** generator.integers(-4, 5, bounds[-1])
        gradient = (generator.standard_normal(bounds[-1]) * magnitude).astype(np.float32)
        gradient[generator.random(bounds[-1]) < 0.3] = -0.0
        layer = []
        for low, high in pairwise(sorted({0, len(sizes), *(choose.randrange(len(sizes)) for _ in range(3))})):
            if high <= first or stop <= low or (number != everywhere and choose.random() < 0.3):
                continue
            elements = gradient[bounds[low] : bounds[high]].copy()
            elements.flags.writeable = choose.random() < 0.5
            layer.append(Segment(low, high, elements))
            for one in range(low, high):
                some = gradient[bounds[one] : bounds[one + 1]]
                totals[one] = totals[one] + some if one in totals else some
        layers += [layer] if layer else []
    expected = np.concatenate([totals[one] for one in range(first, stop)]).tobytes()
    found = Gradient(bounds, first, stop, layers)
    assert (found.first, found.stop, found.count) == (first, stop, bounds[stop] - bounds[first])
    at_once, read = choose.randint(1, 5), []
    for begin in range(0, found.count, at_once):
        end = min(begin + at_once, found.count)
        read.append(found.read(begin, end, np.empty(end - begin, np.float32)).copy())
    assert np.concatenate(read).tobytes() == expected
    total = found.total()
    assert total.flags.writeable
    assert total.tobytes() == expected


def test_what_a_slot_says_of_each_of_its_last_steps_is_known() -> None:
    """Slot 1 is in none of them, so that all of them still count: the first is merged, and the others wait."""
    state = plain_bucket("a", "b", "c", "d")
    for step, pushes in enumerate([False, True, False]):
        elements = np.zeros(4, np.float32) if pushes else None
        assert state.accept(0, step, Segment(0, 4, elements)) == [(0, 4)]
    assert list(advanced(state, 0, 4)) == []
    for step, pushes in enumerate([False, True, False]):
        state.check(0, step, 0, 4, pushes=pushes)
        with pytest.raises(PushRefusedError, match=f"key 'a', slice 0, step {step}: the slot"):
            state.check(0, step, 0, 4, pushes=not pushes)
    with pytest.raises(PushRefusedError, match=r"more than 2 steps ahead of step 0, which waits for slots 1"):
        state.check(0, 3, 0, 4, pushes=True)
    state.replace(0)
    assert state.arrived[0].tolist() == [0] * 4
    state.check(0, 0, 0, 4, pushes=True)


def test_what_a_slot_that_was_replaced_said_of_steps_that_are_not_applied_is_forgotten() -> None:
    state = plain_bucket("a", "b", "c", "d")
    state.accept(0, 0, Segment(0, 2, np.zeros(2, np.float32)))
    assert list(advanced(state, 0, 2)) == []
    state.accept(0, 0, Segment(2, 4, None))
    with pytest.raises(PushRefusedError, match="key 'c', slice 0, step 0: the slot declared nothing before and pushes"):
        state.check(0, 0, 0, 4, pushes=True)
    state.replace(0)
    state.check(0, 0, 0, 4, pushes=True)
    assert state.accept(0, 0, Segment(0, 4, np.zeros(4, np.float32))) == [(0, 4)]


def test_slices_of_which_a_later_step_has_come_cannot_be_restored() -> None:
    """The step would wait for ever: those before it never come."""
    state = plain_bucket("a", "b", "c", "d")
    state.accept(0, 1, Segment(1, 3, np.zeros(2, np.float32)))
    with pytest.raises(PushRefusedError, match="key 'c', slice 0, step 5: it cannot be restored: a step of it has beg"):
        state.restore(0, 5, 0, Segment(2, 4, np.zeros(2, np.float32)), "a")
    assert state.restore(0, 5, 0, Segment(3, 4, np.zeros(1, np.float32)), "b") == [(3, 4)]


def plain_bucket(
    *names: str, slots: int = 2, mode: Mode = Mode.SYNC, merge: Merge = Merge.SLOT, bound: int = 0
) -> Bucket:
    """Each key is a slice of one number, which is 0; a gradient is taken from it."""
    rule = Rule("less", {}, {}, lambda weight, gradient, *_: np.subtract(weight, gradient, out=weight))
    keys = [constant(key_of(name, [1], slots), 0.0) for name in names]
    description = store_of(keys, slots=slots, shards=1, merge=merge, mode=mode)
    (bucket,) = JobShard(msgspec.structs.replace(description, staleness=bound), 0, rule=rule).buckets.values()
    return bucket


def floats(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


@pytest.mark.parametrize("mode", [Mode.SYNC, Mode.ASYNC])
def test_pulls_of_versions_to_come_are_not_looked_at(mode: Mode) -> None:
    """A step costs as much with a thousand pulls ahead as with one."""
    bucket, count, looked = plain_bucket("a", slots=1, mode=mode), 1000, 0
    for version in range(1, count + 1):
        wait = PullWait(None, version, version, slot=0, state=False, reading=Reading.OWN)
        wait.want(bucket.spec.number, 0, 1)
        bucket.add_pull(wait)
    for step in range(count):
        for slices in bucket.accept(0, step, Segment(0, 1, floats(1))):
            list(advanced(bucket, *slices))
        found = bucket.pulls_of(0, 1)
        assert [one.version for one in found if bucket.ready(one, 0, 1)] == [step + 1]
        looked += len(found)
        for one in found:
            one.answered(bucket.spec.number, 0, 1)
            bucket.forget_pull(one)
    assert looked == count
    assert open_pulls(bucket) == []


def test_a_pull_that_gives_up_is_forgotten_at_once_and_leaves_no_memory_behind() -> None:
    bucket = plain_bucket("a", slots=1)
    for number in range(500):
        wait = PullWait(None, number, 7, slot=0, state=False, reading=Reading.OWN)
        wait.want(bucket.spec.number, 0, 1)
        bucket.add_pull(wait)
        if number:
            wait.drop({bucket.spec.number: bucket})
        assert [one.request for one in open_pulls(bucket)] == [0]
    assert [len(some) for some in bucket._pulls.values()] == [1]


def test_a_pull_that_is_bound_waits_for_who_is_behind_and_names_it() -> None:
    bucket = plain_bucket("a", slots=3, mode=Mode.STALE, bound=1)
    own, other = (PullWait(None, 1, 2, slot=slot, state=False, reading=Reading.OWN) for slot in (0, 7))
    for wait in (own, other):
        wait.want(bucket.spec.number, 0, 1)
    for slot, step in [(0, 0), (0, 1), (1, 0)]:
        for slices in bucket.accept(slot, step, Segment(0, 1, floats(1))):
            list(advanced(bucket, *slices))
    for wait in (own, other):
        assert bucket.ready(wait, 0, 1) == []
        assert bucket.pull_waits_for(wait)[1] == [2]
    for slices in bucket.accept(2, 0, Segment(0, 1, floats(1))):
        list(advanced(bucket, *slices))
    assert [bucket.ready(wait, 0, 1) for wait in (own, other)] == [[(0, 1, 2)], [(0, 1, 2)]]


@pytest.mark.parametrize(
    ("dtype", "pushed", "mean"),
    [
        ("int8", (100, 100), 100),
        ("int8", (-128, -128), -128),
        ("int8", (-3, 0), -2),
        ("int32", (2**31 - 1, 2**31 - 1), 2**31 - 1),
        ("int64", (2**62 + 1, 2**62 + 3), 2**62 + 2),
        ("int64", (-(2**63), -(2**63)), -(2**63)),
        ("float16", (60000, 60000), 60000),
        ("float32", (3e38, 3e38), 3e38),
        ("float64", (1.7e308, 1.7e308), 1.7e308),
    ],
)
@pytest.mark.parametrize("whole", [False, True])
def test_a_mean_of_numbers_that_a_type_has_is_one_that_it_has(
    whole: bool, dtype: str, pushed: tuple[int, int], mean: int
) -> None:
    key = msgspec.structs.replace(key_of("m", (5,), 2), dtype=dtype, update=Update.MEAN, whole=whole)
    with stores_of("local", store_of([key], slots=2, shards=1)) as stores:
        for store, number in zip(stores, pushed, strict=True):
            store.push("m", 0, np.full(5, number, dtype))
        assert np.all(stores[0].pull("m", 1).result(20) == np.full(5, mean, dtype))


def test_a_copy_of_a_block_is_sent_as_its_original_was() -> None:
    original = Block(np.ones(COPIED_BYTES, np.uint8), BufferSource(memoryview(b""), bytes), 0, 1)
    (part,) = original.copy().source(0, COPIED_BYTES)
    assert part == b"\1" * COPIED_BYTES


def test_a_block_that_was_copied_moves_back_to_where_peers_read_it_once_nobody_does() -> None:
    bounds = bounds_of([2, 2])
    shared = np.arange(4, dtype=np.float32)
    values = BucketValues(shared, bounds, shared=True)
    ((_, _, home, _, _),) = values.sections(0, 2)
    first = Pin(home, 0, 2)
    ((_, _, written),) = values.written(0, 1)
    written[...] = 10
    assert shared.tolist() == [0, 1, 2, 3], "it is read there"
    ((_, _, copy, _, _),) = values.sections(0, 2)
    assert copy is not home
    second = Pin(copy, 0, 2)
    ((_, _, written),) = values.written(1, 2)
    written[...] = 20
    second.release(0, 2)
    first.release(0, 2)
    ((_, _, written),) = values.written(0, 1)
    written[...] = 30
    assert shared.tolist() == [30, 30, 20, 20]
    assert values.sections(0, 2)[0][2] is home
