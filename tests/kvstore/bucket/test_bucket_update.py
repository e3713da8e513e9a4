"""Updates of a bucket's slices, against each slice updated by itself in plain NumPy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store_cluster import key_of, slices_on, store_of
from weft_graph.program import Update
from weft_kernels.rules.record import Rule
from weft_kernels.run import KernelError
from weft_kvstore.arrays import Segment
from weft_kvstore.bucket import update as bucket_update
from weft_kvstore.bucket import values as bucket_values
from weft_kvstore.bucket.steps import JobFailedError
from weft_kvstore.bucket.update import BucketSpec, BucketUpdate
from weft_kvstore.bucket.values import BucketValues, Gradient, PendingSegments, Pin
from weft_kvstore.hyper import KeyHyper
from weft_kvstore.shard.job_shard import JobShard

Array = np.ndarray[Any, np.dtype[Any]]

RATE = 0.25


def counting(weight: Array, gradient: Array, state: Mapping[str, Array], step: int, hyper: Mapping[str, float]) -> None:
    """Each update by its number: what is made twice, left out, or of another slice is seen."""
    state["sum"] *= np.float32(0.5)
    state["sum"] += gradient
    weight -= np.float32(hyper["lr"] * step) * state["sum"]


COUNTING = Rule("counting", {"sum": 3.0}, {"lr": RATE}, counting, anywhere=True)
SLICE_WISE = replace(COUNTING, anywhere=False)


def spec_of(sizes: Sequence[int], *, slice_elements: int = 2, rule: Rule = COUNTING, **others: Any) -> BucketSpec:
    """A bucket of keys "k0", "k1" and so on of so many elements."""
    keys = [msgspec.structs.replace(key_of(f"k{number}", (size,), 2), **others) for number, size in enumerate(sizes)]
    (made,) = JobShard(store_of(keys, slots=2, shards=1, slice_bytes=4 * slice_elements), 0, rule=rule).buckets.values()
    return replace(made.spec, hyper=KeyHyper(dict(rule.hyper), {}))


def update_of(spec: BucketSpec, dtype: str = "float32") -> BucketUpdate:
    bounds = spec.partition.bounds // np.dtype(spec.keys[0].dtype).itemsize
    return BucketUpdate(spec, BucketValues(np.arange(int(bounds[-1])).astype(dtype), bounds))


def flat(values: BucketValues) -> Array:
    return np.concatenate([some for _, _, some in values.elements(0, len(values.bounds) - 1)])


def pushed(update: BucketUpdate, segment: Segment, contributors: int, step: int, last: Array | None = None) -> None:
    """The sum of one segment, and maybe of another."""
    first, stop = segment.first, segment.stop
    layers = [[segment]] if last is None else [[segment], [Segment(first, stop, last)]]
    update.with_gradient(Gradient(update.values.bounds, first, stop, layers), contributors, step)


def some_of(update: BucketUpdate, first: int, stop: int, seed: int) -> Array:
    bounds = update.values.bounds
    return np.random.default_rng(seed).standard_normal(int(bounds[stop] - bounds[first])).astype(np.float32)


def ranges(slices: int) -> Iterator[tuple[int, int]]:
    return ((first, stop) for first in range(slices) for stop in range(first + 1, slices + 1))


ELEVEN = (5, 1, 7, 2, 3)
"""Keys of 3, 1, 4, 1 and 2 slices."""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.lists(st.sampled_from(list(ranges(11))), max_size=8),
    block=st.sampled_from([8, 24, 1 << 23]),
    rule=st.sampled_from([COUNTING, SLICE_WISE]),
    piece_elements=st.sampled_from([1, 1000]),
    own=st.sets(st.integers(0, 4)),
)
def test_slices_are_updated_as_each_would_be_by_itself(
    cuts: list[tuple[int, int]],
    block: int,
    rule: Rule,
    piece_elements: int,
    own: set[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever comes together, was updated how often before, lies in which block, and has numbers of its own."""
    monkeypatch.setattr(bucket_values, "BLOCK_BYTES", block)
    spec = spec_of(ELEVEN, rule=rule)
    apart = {place: KeyHyper({"lr": RATE * (place + 2)}, {}) for place in own}
    update = update_of(replace(spec, hyper_by_key=apart, piece_elements=piece_elements))
    bounds = update.values.bounds
    assert bounds.tolist() == [0, 2, 4, 5, 6, 8, 10, 12, 13, 15, 17, 18]
    weight, state, counts = flat(update.values), np.full(18, 3, np.float32), [0] * 11
    for step, (first, stop) in enumerate(cuts):
        gradient = some_of(update, first, stop, step)
        for one in range(first, stop):
            counts[one] += 1
            place, _ = slices_on(spec.partition)[one]
            lr = RATE * (place + 2) if place in own else RATE
            here = slice(bounds[one], bounds[one + 1])
            part = gradient[bounds[one] - bounds[first] : bounds[one + 1] - bounds[first]]
            counting(weight[here], part, {"sum": state[here]}, counts[one], {"lr": lr})
        pushed(update, Segment(first, stop, gradient), 2, step)
        assert update.updates.tolist() == counts
    assert flat(update.values).tobytes() == weight.tobytes()
    assert flat(update.state["sum"]).tobytes() == state.tobytes()


@pytest.mark.parametrize("block", [8, 24, 1 << 23])
@pytest.mark.parametrize("at_once", [1, 3, 1 << 17])
def test_a_sum_that_is_made_as_the_rule_runs_is_the_same_bits(
    at_once: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_values, "BLOCK_BYTES", block)
    monkeypatch.setattr(bucket_update, "ADDED_ELEMENTS", at_once)
    is_sync, apart = (update_of(replace(spec_of(ELEVEN))) for _ in range(2))
    for step, (first, stop) in enumerate([(0, 11), (2, 9), (3, 4), (0, 11)]):
        one, last = some_of(is_sync, first, stop, step), some_of(is_sync, first, stop, 100 + step)
        pushed(is_sync, Segment(first, stop, one + last), 2, step)
        addend = last.copy()
        pushed(apart, Segment(first, stop, one), 2, step, addend)
        assert addend.tobytes() == last.tobytes()
    assert flat(apart.values).tobytes() == flat(is_sync.values).tobytes()
    assert flat(apart.state["sum"]).tobytes() == flat(is_sync.state["sum"]).tobytes()


@pytest.mark.parametrize("rule", [COUNTING, SLICE_WISE])
def test_bytes_that_are_on_their_way_stay_as_they_are(rule: Rule) -> None:
    update = update_of(spec_of(ELEVEN, rule=rule))
    ((first, stop, block, *_),) = update.values.sections(0, 11)
    pin = Pin(block, first, stop)
    travels = memoryview(block.source.base)
    before = bytes(travels)
    pushed(update, Segment(4, 6, np.ones(4, np.float32)), 2, 0)
    update.without_gradient(0, 11)
    assert bytes(travels) == before
    assert flat(update.values).tobytes() != before
    pin.release(0, stop)


def test_what_lies_in_pieces_is_put_together_in_the_cache_and_a_rule_that_may_not_be_cut_gets_slices() -> None:
    seen: list[int] = []

    def apply(weight: Array, *_: Any) -> None:
        seen.append(len(weight))
        weight += 1

    elements = bucket_update.ADDED_ELEMENTS + 5
    spec = spec_of([elements, 3], slice_elements=100_000, rule=Rule("wide", {}, {}, apply, anywhere=True))
    slice_wise, gradient = replace(spec.rule, anywhere=False), np.zeros(elements + 3, np.float32)
    for rule, pieces, wanted in [
        (spec.rule, 1, [elements + 3]),
        (spec.rule, 2, [bucket_update.ADDED_ELEMENTS, 8]),
        (slice_wise, 1, [60_000, 40_000, 60_000, 40_000, 60_000, elements - 260_000, 3]),
        (slice_wise, 2, [60_000, 40_000, 60_000, 40_000, 60_000, elements - 260_000, 3]),
    ]:
        seen.clear()
        update = update_of(replace(spec, rule=rule, piece_elements=60_000))
        before, cut = flat(update.values), PendingSegments(update.values.bounds)
        whole = Segment(0, 4, gradient)
        parts = [whole] if pieces == 1 else [cut.narrow(whole, 0, 3), cut.narrow(whole, 3, 4)]
        update.with_gradient(Gradient(update.values.bounds, 0, 4, [parts]), 2, 0)
        assert np.array_equal(flat(update.values), before + 1), "each element once"
        assert seen == wanted


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_mean_is_of_those_who_contributed_and_a_merged_gradient_is_their_sum(dtype: str) -> None:
    for kind, wanted in [(Update.MEAN, [1.5, 3.0, 4.5]), (Update.GRADIENT, [4.5, 9.0, 13.5])]:
        spec = spec_of([3, 2], dtype=dtype, update=kind, slice_elements=100)
        update = update_of(replace(spec, update=kind), dtype)
        assert update.state == {}
        pushed(update, Segment(0, 1, np.array([4.5, 9.0, 13.5], dtype)), 3, 0)
        assert flat(update.values).tolist() == [*wanted, 3.0, 4.0]
        assert flat(update.values).dtype == dtype


@pytest.mark.parametrize(("kind", "left"), [(Update.RULE, False), (Update.MEAN, False), (Update.GRADIENT, True)])
def test_where_nobody_had_anything_a_merged_gradient_is_zero_and_other_values_stay(kind: Update, *, left: bool) -> None:
    update = update_of(replace(spec_of(ELEVEN), update=kind))
    before = flat(update.values)
    update.without_gradient(3, 7)
    after = before.copy()
    if left:
        after[5:12] = 0
    assert flat(update.values).tolist() == after.tolist()
    assert update.updates.tolist() == [0] * 11, "a step without gradients is no update"


class Broken:
    """A rule that fails on gradients that are not finite."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, weight: Array, gradient: Array, *_: Any) -> None:
        if not np.isfinite(gradient).all():
            raise self.error
        weight -= gradient


@pytest.mark.parametrize(
    ("error", "told"),
    [(each("no"), "no") for each in (ZeroDivisionError, OverflowError, ValueError, MemoryError, KernelError)]
    + [(MemoryError(), "MemoryError")],
)
def test_a_rule_that_fails_is_named_with_the_key_the_slice_and_the_step(error: Exception, told: str) -> None:
    rule = Rule("broken", {}, {}, Broken(error))
    update = update_of(spec_of(ELEVEN, rule=rule))
    gradient = np.ones(18, np.float32)
    gradient[10] = np.nan  # The third key's third slice.
    with pytest.raises(JobFailedError, match=f"rule 'broken' failed on key 'k2', slice 2, step 41: {told}$") as caught:
        pushed(update, Segment(0, 11, gradient), 2, 41)
    assert caught.value.__cause__ is error


def test_where_slices_are_computed_together_a_failure_names_the_first_and_the_last() -> None:
    rule = Rule("broken", {}, {}, Broken(ValueError("no")), anywhere=True)
    update = update_of(spec_of(ELEVEN, rule=rule))
    gradient = np.full(10, np.inf, np.float32)
    told = "rule 'broken' failed on key 'k0', slice 2 to key 'k2', slice 3, step 7: no"
    with pytest.raises(JobFailedError, match=told):
        pushed(update, Segment(2, 8, some_of(update, 2, 8, 0) * gradient[0]), 2, 7)


def test_a_schedule_that_fails_fails_its_rule() -> None:
    class Falling(KeyHyper):
        def at(self, step: int) -> Mapping[str, float]:
            return {"lr": 1 / (step - 5)}

    update = update_of(replace(spec_of(ELEVEN), hyper_by_key={2: Falling({}, {})}))
    pushed(update, Segment(0, 11, np.ones(18, np.float32)), 2, 4)
    with pytest.raises(JobFailedError, match=r"rule 'counting' failed on key 'k2', slice 0, step 5: .*division"):
        pushed(update, Segment(0, 11, np.ones(18, np.float32)), 2, 5)


def test_a_fault_that_is_no_rules_is_not_told_as_one() -> None:
    rule = Rule("broken", {}, {}, Broken(KeyError("a fault of the store")))
    update = update_of(spec_of(ELEVEN, rule=rule))
    with pytest.raises(KeyError, match="a fault of the store"):
        pushed(update, Segment(0, 11, np.full(18, np.nan, np.float32)), 2, 0)
