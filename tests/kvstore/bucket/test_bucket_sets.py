"""Values that are set in a bucket, against slices that are kept one by one in plain dicts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store_cluster import given as given_key
from store_cluster import key_of, store_of
from weft_kvstore.arrays import Segment, ranges_alike
from weft_kvstore.bucket import sets as bucket_sets
from weft_kvstore.bucket.bucket import Bucket as Sliced
from weft_kvstore.description.records import Mode
from weft_kvstore.errors import PushRefusedError
from weft_kvstore.settings import SETS_AHEAD, SETS_WAITING
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.wire.codec import PushSegment
from weft_kvstore.wire.messages import PayloadKind

Array = np.ndarray[Any, np.dtype[Any]]

NAMED = ["'a', slice 0", "'a', slice 1", "'a', slice 2", "'b', slice 0", "'b', slice 1", "'c', slice 0"]
GIVEN = np.array([True, True, True, False, False, True])
SLICES = len(NAMED)
FIRST = -1.0
"""What every value is before anything is set."""


class Bucket:
    """Three keys' slices of up to two numbers, of which the second key has a first value."""

    def __init__(self, *, mode: Mode = Mode.SYNC, slots: int = 1) -> None:
        keys = [given_key(key_of("a", (5,), slots)), key_of("b", (3,), slots), given_key(key_of("c", (1,), slots))]
        description = store_of(keys, slots=max(slots, 1), shards=1, slice_bytes=8)
        (made,) = JobShard(msgspec.structs.replace(description, mode=mode), 0).buckets.values()
        self.bounds = made.bounds
        self.state = Sliced(made.spec, np.full(int(self.bounds[-1]), FIRST, np.float32), GIVEN.copy())

    def segment(self, number: float, first: int, stop: int) -> Segment:
        return Segment(first, stop, np.full(int(self.bounds[stop] - self.bounds[first]), number, np.float32))

    def set(
        self, number: float, version: int, first: int, stop: int, origin: object, slot: int = 0
    ) -> list[tuple[int, int]]:
        return self.state.set(slot, version, self.segment(number, first, stop), origin)

    def advance(self, first: int, stop: int) -> None:
        """These slices go on by a step, each from where it is."""
        now = self.state.versions[first:stop].copy()
        self.state.versions[first:stop] += 1
        for low, high, version in ranges_alike(now, first):
            self.state.apply_sets(0, version + 1, low, high)

    @property
    def values(self) -> list[float]:
        """The number in each slice, all of whose elements are it."""
        flat = np.concatenate([some for _, _, some in self.state.update.values.elements(0, SLICES)])
        found = [np.unique(flat[self.bounds[one] : self.bounds[one + 1]]) for one in range(SLICES)]
        assert all(len(one) == 1 for one in found)
        return [float(one[0]) for one in found]


class Plain:
    """The same one slice at a time."""

    def __init__(self) -> None:
        self.values = [FIRST] * SLICES
        self.version = [0] * SLICES
        self.pending_sets: list[dict[int, float]] = [{} for _ in range(SLICES)]
        self.known: set[tuple[object, int]] = set()

    def new(self, first: int, stop: int, origin: object) -> Iterator[int]:
        return (one for one in range(first, stop) if (origin, one) not in self.known)

    def refused(self, version: int, first: int, stop: int, origin: object) -> set[int]:
        """The slices at which a value cannot be set."""
        found = set()
        for one in self.new(first, stop, origin):
            now, ahead = self.version[one], self.pending_sets[one]
            full = version > now and version not in ahead and len(ahead) >= SETS_WAITING
            if full or not now <= version <= now + SETS_AHEAD or (version == 0 and not GIVEN[one]):
                found.add(one)
        return found

    def set(self, number: float, version: int, first: int, stop: int, origin: object) -> list[int]:
        at_once = []
        for one in list(self.new(first, stop, origin)):
            self.known.add((origin, one))
            if self.version[one] == version:
                self.values[one] = number
                at_once.append(one)
            else:
                self.pending_sets[one][version] = number
        return at_once

    def advance(self, first: int, stop: int) -> None:
        for one in range(first, stop):
            self.version[one] += 1
            self.values[one] = self.pending_sets[one].pop(self.version[one], self.values[one])


ranges = st.tuples(st.integers(0, SLICES - 1), st.integers(1, SLICES)).map(
    lambda one: (one[0], min(one[0] + one[1], SLICES))
)
sets = st.tuples(st.just("set"), ranges, st.integers(0, SETS_AHEAD + 3), st.integers(0, 30))
advances = st.tuples(st.just("advance"), ranges, st.just(0), st.just(0))


@settings(max_examples=200)
@given(st.lists(st.one_of(sets, sets, advances), max_size=30))
def test_slices_are_set_as_they_would_be_one_by_one(events: list[tuple[str, tuple[int, int], int, int]]) -> None:
    """Whatever calls overlap, come again, come for later versions, or are refused."""
    bucket, plain, calls = Bucket(), Plain(), dict[int, int]()
    for number, (what, (first, stop), version, origin) in enumerate(events):
        if what == "advance":
            bucket.advance(first, stop)
            plain.advance(first, stop)
        else:
            version = calls.setdefault(origin, version)  # noqa: PLW2901  # A call is for one version.
            refused = plain.refused(version, first, stop, origin)
            if refused:
                with pytest.raises(PushRefusedError, match="the value cannot be set") as caught:
                    bucket.set(number, version, first, stop, origin)
                assert any(NAMED[one] in str(caught.value) for one in refused), "the error names one that is wrong"
            else:
                changed = bucket.set(number, version, first, stop, origin)
                at_once = [one for low, high in changed for one in range(low, high)]
                assert at_once == plain.set(number, version, first, stop, origin)
        assert bucket.values == plain.values
        assert bucket.state.sets_waiting == sum(map(len, plain.pending_sets))
        lacks = [bool(GIVEN[one]) and plain.values[one] == FIRST for one in range(SLICES)]
        assert bucket.state.uninitialized(0, SLICES).tolist() == lacks


def test_values_of_two_versions_wait_for_each_slice_whatever_waits_for_those_it_travels_with() -> None:
    bucket = Bucket()
    bucket.set(1, 1, 0, 3, "one")
    bucket.set(2, 2, 3, 6, "other")
    assert bucket.set(3, 3, 0, 6, "both") == []
    with pytest.raises(PushRefusedError, match=r"'b', slice 0, version 4: .* wait for versions \[2, 3\] already"):
        bucket.set(9, 4, 3, 6, "more")
    with pytest.raises(PushRefusedError, match=r"'a', slice 0, version 2: .* wait for versions \[1, 3\] already"):
        bucket.set(9, 2, 0, 6, "what waits of b does not help a")


def test_a_value_for_a_version_that_waits_takes_the_place_of_the_one_before_it() -> None:
    bucket = Bucket()
    bucket.set(5, 1, 0, 6, "one")
    bucket.set(6, 1, 2, 4, "other")
    bucket.advance(0, 6)
    assert bucket.values == [5, 5, 6, 6, 5, 5]
    assert bucket.state.sets_waiting == 0


def test_what_comes_again_does_not_undo_what_was_set_since() -> None:
    bucket = Bucket()
    bucket.set(1, 0, 0, 2, "first")
    bucket.set(2, 0, 0, 3, "second")
    assert bucket.set(1, 0, 0, 3, "first") == [(2, 3)], "only what had not come"
    assert bucket.values[:3] == [2, 2, 1]


def test_the_version_that_has_just_passed_is_too_late_unless_it_comes_again() -> None:
    bucket = Bucket()
    bucket.set(1, 0, 0, 3, "call")
    bucket.advance(0, 3)
    assert bucket.set(9, 0, 0, 3, "call") == []
    assert bucket.values[:3] == [1, 1, 1]
    with pytest.raises(PushRefusedError, match=r"slot 4, key 'a', slice 0, version 0: .* it is at version 1 already"):
        bucket.set(9, 0, 0, 3, "another", slot=4)


def test_how_far_ahead_a_value_may_be_set() -> None:
    bucket = Bucket()
    assert bucket.set(1, SETS_AHEAD, 0, SLICES, "call") == []
    bucket.advance(0, 5)
    assert bucket.set(1, SETS_AHEAD + 1, 0, 5, "another") == []
    with pytest.raises(
        PushRefusedError, match=f"'c', slice 0, version 9: .* more than {SETS_AHEAD} ahead of version 0"
    ):
        bucket.set(1, SETS_AHEAD + 1, 0, SLICES, "one more")


@pytest.mark.parametrize("mode", [Mode.ASYNC, Mode.STALE])
def test_in_async_and_stale_mode_a_value_comes_behind_what_its_slot_has_pushed(mode: Mode) -> None:
    """Which may wait to be merged. What others have pushed comes whenever it does."""
    description = store_of([key_of("b", (6,), 2)], slots=2, shards=1, slice_bytes=8)
    shard = JobShard(msgspec.structs.replace(description, mode=mode, hyper={"lr": 1.0}), 0)
    (bucket,) = shard.buckets.values()
    for slot, step, first, stop in [(0, 0, 0, 2), (0, 1, 0, 1), (1, 0, 1, 3)]:
        bucket.push(slot, step, [Segment(first, stop, np.ones(2 * (stop - first), np.float32))])
    values = np.full(6, 5, np.float32)
    pushed = PushSegment(PayloadKind.VALUE, 1, bucket.spec.number, 7, 0, 3, 0, [memoryview(values).cast("B")])
    assert bucket.receive_set(0, pushed, "call") == [(2, 3)]
    todo = [(0, 3)]
    while bucket.advance(todo):
        pass
    found = np.concatenate([some for _, _, some in bucket.update.values.elements(0, 3)])
    assert found.tolist() == [5.0, 5.0, *found[2:4], 4.0, 4.0]
    assert found[2] in {4.0, 5.0}, "the other slot's, before it or behind it"
    assert not bucket.pending_sets


@pytest.mark.parametrize("mode", [Mode.ASYNC, Mode.STALE])
def test_a_value_behind_pushes_holds_once_a_newer_incarnation_replaces_these(mode: Mode) -> None:
    """Else it would come behind what the next process pushes, whose gradients would be lost."""
    description = store_of([key_of("b", (6,), 2)], slots=2, shards=1, slice_bytes=8)
    shard = JobShard(msgspec.structs.replace(description, mode=mode, hyper={"lr": 1.0}), 0)
    (bucket,) = shard.buckets.values()
    slices = [Segment(0, 3, np.full(6, number, np.float32)) for number in (-1, 5, 7)]
    for slot, value in ((0, slices[1]), (1, slices[2])):
        bucket.push(slot, 0, [slices[0]])
        assert bucket.set(slot, 1, value, slot) == []
    shard.replace(0)
    assert [key for key, some in bucket.pending_sets.items() if some] == [(1, 1)], "the other slot's waits on"
    for step in (0, 1):
        bucket.push(0, step, [slices[0]])
    shard.replace(1)
    todo = [(0, 3)]
    while bucket.advance(todo):
        pass
    (found,) = bucket.update.values.elements(0, 3)
    assert found[2].tolist() == [9.0] * 6
    assert not bucket.pending_sets


@pytest.mark.parametrize("mode", [Mode.ASYNC, Mode.STALE])
def test_in_async_and_stale_mode_a_first_value_is_given_once(mode: Mode) -> None:
    bucket = Bucket(mode=mode)
    assert bucket.set(1, 0, 0, 2, "one") == [(0, 2)]
    assert bucket.set(2, 0, 0, SLICES, "a process that began anew") == [(2, 6)]
    assert bucket.values == [1, 1, 2, 2, 2, 2]
    assert bucket.set(3, 7, 0, SLICES, "a value that is meant") == [(0, 6)]
    assert bucket.set(4, 5, 5, 6, "versions are each slot's own") == [(5, 6)]
    assert bucket.values == [3, 3, 3, 3, 3, 4]
    assert bucket.state.sets_waiting == 0


def test_a_key_to_which_nobody_contributes_is_set_at_once_at_any_version() -> None:
    bucket = Bucket(slots=0)
    for number, version in enumerate([0, 0, 1000, 3]):
        assert bucket.set(number, version, 0, SLICES, number) == [(0, SLICES)]
        assert bucket.values == [number] * SLICES


def test_calls_are_known_again_by_the_last_of_them_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_sets, "SETS_KEPT", 2)
    bucket = Bucket()
    for number in range(3):
        bucket.set(number, 0, 0, 3, number)
    assert bucket.set(9, 0, 0, 3, 2) == bucket.set(9, 0, 0, 3, 1) == []
    assert bucket.values[:3] == [2, 2, 2]
    assert bucket.set(9, 0, 0, 3, 0) == [(0, 3)]


def test_the_callers_array_is_written_no_more_once_it_was_set() -> None:
    """What waits is the frame's own memory; what is set is the bucket's."""
    bucket = Bucket()
    segment = bucket.segment(1, 0, SLICES)
    bucket.state.set(0, 0, segment._replace(stop=3, elements=segment.elements[:5]), "call")  # type: ignore[index]
    assert segment.elements is not None
    segment.elements[:] = 77
    assert bucket.values[:3] == [1, 1, 1]
