"""A whole key is a bucket of one key: its slices travel and are merged one by one, and are updated together."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from store_cluster import advanced, constant, given, key_of, store_of
from weft_graph.program import Update
from weft_kernels.rules.record import Rule
from weft_kvstore.arrays import Array, Segment
from weft_kvstore.bucket.bucket import Bucket
from weft_kvstore.description.records import Mode
from weft_kvstore.shard.job_shard import JobShard

SHAPE = (8, 5)
SLICES = 3
"""Of 16 elements; the last has 8."""


class Whole:
    """A whole key of two slots, under a rule that notes the shapes that it sees."""

    def __init__(self, *, mode: Mode = Mode.SYNC, update: Update = Update.RULE, is_given: bool = False) -> None:
        self.seen: list[tuple[int, ...]] = []

        def descend(weight: Array, gradient: Array, state: Any, step: int, hyper: Any) -> None:
            self.seen.append((*weight.shape, *gradient.shape, *state["sum"].shape))
            weight -= gradient
            state["sum"] += gradient

        rule = Rule("mine", {"sum": 0.0}, {"lr": 1.0, "weight_decay": 0.0}, descend, whole=True)
        key = msgspec.structs.replace(constant(key_of("w", SHAPE, 2), 3.0), whole=True, update=update)
        key = given(key) if is_given else key
        description = store_of([key], slots=2, shards=1, slice_bytes=64, mode=mode)
        self.state: Bucket = JobShard(description, 0, rule=rule).buckets[0]

    def push(self, slot: int, first: int, stop: int, number: float | None, step: int = 0) -> list[tuple[int, int]]:
        """The slices that have changed."""
        count = int(self.state.bounds[stop] - self.state.bounds[first])
        elements = None if number is None else np.full(count, number, np.float32)
        found = []
        for slices in self.state.accept(slot, step, Segment(first, stop, elements)):
            found += advanced(self.state, *slices)
        return found

    @property
    def value(self) -> Array:
        ((_, _, found),) = self.state.update.values.elements(0, SLICES)
        return found


def test_it_is_updated_once_all_slices_of_all_slots_are_in_and_the_rule_sees_its_shape() -> None:
    whole = Whole()
    assert [whole.push(0, 0, 2, 1), whole.push(1, 1, 3, 10), whole.push(0, 2, 3, 1)] == [[], [], []]
    assert whole.seen == []
    assert whole.push(1, 0, 1, 10) == [(0, SLICES)]
    assert whole.seen == [SHAPE * 3]
    assert whole.value.tolist() == [-8.0] * 40
    assert whole.state.versions.tolist() == [1, 1, 1]


def test_of_a_step_whose_update_waits_the_next_may_come_in_part() -> None:
    whole = Whole()
    whole.push(0, 0, 3, 1)
    whole.push(0, 0, 2, 100, step=1)
    assert whole.push(1, 0, 3, 10) == [(0, SLICES)]
    whole.push(1, 0, 3, 1000, step=1)
    assert whole.value.tolist() == [-8.0] * 40
    assert whole.push(0, 2, 3, 100, step=1) == [(0, SLICES)]
    assert whole.value.tolist() == [-1108.0] * 40


@pytest.mark.parametrize("update", [Update.GRADIENT, Update.MEAN])
def test_its_merged_gradient_or_mean_takes_the_values_place(update: Update) -> None:
    whole = Whole(update=update)
    for slot, first, stop in ((0, 0, 3), (1, 0, 1), (1, 1, 3)):
        whole.push(slot, first, stop, 3e38 if slot else 1.0)
    assert whole.value.tolist() == [np.float32(3e38) if update is Update.GRADIENT else np.float32(1.5e38)] * 40


def test_where_nobody_has_anything_it_stays_and_counts_the_step() -> None:
    whole = Whole()
    whole.push(0, 0, 3, None)
    assert whole.push(1, 0, 3, None) == [(0, SLICES)]
    assert whole.value.tolist() == [3.0] * 40
    assert whole.state.versions.tolist() == [1, 1, 1]


def test_in_async_and_stale_mode_each_push_is_an_update_once_all_of_it_is_in() -> None:
    whole = Whole(mode=Mode.ASYNC)
    assert whole.push(1, 1, 3, 10) == []
    assert whole.push(0, 0, 3, 1) == [(0, SLICES)]
    assert whole.value.tolist() == [2.0] * 40
    assert whole.push(1, 0, 1, 10) == [(0, SLICES)]
    assert whole.value.tolist() == [-8.0] * 40
    assert whole.seen == [SHAPE * 3] * 2
    assert whole.push(0, 0, 3, None, step=1) == [(0, SLICES)]


def test_one_that_is_given_waits_until_each_slice_is_set() -> None:
    whole = Whole(is_given=True)
    whole.push(0, 0, 3, 1)
    assert whole.push(1, 0, 3, 1) == []
    for slice_ in range(SLICES):
        assert list(advanced(whole.state, 0, SLICES)) == []
        elements = np.full(int(np.diff(whole.state.bounds)[slice_]), slice_, np.float32)
        whole.state.set(0, 0, Segment(slice_, slice_ + 1, elements), slice_)
    assert list(advanced(whole.state, 0, SLICES)) == [(0, SLICES)]
    assert whole.value.tolist() == [-2.0] * 16 + [-1.0] * 16 + [0.0] * 8
