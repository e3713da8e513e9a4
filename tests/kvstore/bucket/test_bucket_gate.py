"""Slices of a bucket at their shard's gate: what they measure, and what becomes of their sums."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from store_cluster import key_of, store_of
from weft_graph.program import Update
from weft_kvstore.arrays import Array, Segment
from weft_kvstore.bucket.gate import GateStep, StepGate
from weft_kvstore.bucket.sums import BucketGate, BucketSums
from weft_kvstore.description.records import CommitDescription, LossScaling
from weft_kvstore.shard.job_shard import JobShard

NORM = 13.0
"""Of the gradient (3, 4 | 12)."""
CLIPPED = CommitDescription(clip_norm=1.0)
SCALED = CommitDescription(loss_scaling=LossScaling(2.0, 1000))


class Gated:
    """A bucket of a slice of two elements and one of one element, and a slot whose barrier of step 0 is in."""

    def __init__(self, commit: CommitDescription, gradient: Array, update: Update = Update.RULE) -> None:
        key = msgspec.structs.replace(key_of("w", (3,), 1), update=update)
        (bucket,) = JobShard(store_of([key], slots=1, shards=1, slice_bytes=8), 0).buckets.values()
        self.gate = StepGate(commit, 1)
        self.gate.expect(2)
        self.gate.arrive(0, 0)
        self.sums = BucketSums(2, bucket.state.bounds)
        self.sums.add(Segment(0, 2, gradient.copy()))
        self.bucket = BucketGate(
            self.gate, self.sums, bucket.state.bounds, is_summed=update is not Update.MEAN, unscaled=False
        )

    @property
    def measured(self) -> GateStep:
        found = self.gate.measured(0)
        assert found is not None
        return found

    @property
    def sum(self) -> list[float]:
        return [
            number for segment in self.sums.made(0, 2) if segment.elements is not None for number in segment.elements
        ]


def gradient() -> Array:
    return np.array([3.0, 4.0, 12.0], np.float32)


def test_slices_wait_until_all_are_measured_and_the_step_is_committed() -> None:
    gated = Gated(CLIPPED, gradient())
    assert not gated.bucket.passes(0, 0, 1)
    assert gated.gate.measured(0) is None, "of one slice of two"
    assert not gated.bucket.passes(0, 0, 2)
    assert math.fsum(gated.measured.squares) == NORM**2, "each once, though the first was asked twice"
    gated.gate.commit(0, norm=NORM, finite=True)
    assert gated.bucket.passes(0, 1, 2)
    np.testing.assert_allclose(gated.sum, [3.0, 4.0, 12.0 / NORM], rtol=1e-6, err_msg="the slices that pass")


def test_sums_of_a_step_that_is_skipped_are_dropped() -> None:
    gated = Gated(SCALED, np.array([np.inf, 1.0, 1.0], np.float32))
    assert not gated.bucket.passes(0, 0, 2)
    assert not gated.measured.finite
    gated.gate.commit(0, norm=math.inf, finite=False)
    assert gated.bucket.passes(0, 0, 2)
    assert gated.sum == []


def test_the_scale_of_the_loss_is_taken_off_before_it_is_measured() -> None:
    gated = Gated(SCALED, 2 * gradient())
    assert not gated.bucket.passes(0, 0, 2)
    assert math.fsum(gated.measured.squares) == NORM**2
    gated.gate.commit(0, norm=NORM, finite=True)
    assert gated.bucket.passes(0, 0, 2)
    assert gated.sum == gradient().tolist()


@pytest.mark.parametrize("has_gradient", [True, False])
def test_a_mean_is_neither_measured_nor_clipped_and_nor_is_nothing(has_gradient: bool) -> None:
    gated = Gated(CLIPPED, gradient(), Update.MEAN if has_gradient else Update.RULE)
    if not has_gradient:
        gated.sums.drop(0, 2)
    assert not gated.bucket.passes(0, 0, 2)
    assert math.fsum(gated.measured.squares) == 0
    gated.gate.commit(0, norm=NORM, finite=True)
    assert gated.bucket.passes(0, 0, 2)
    assert gated.sum == (gradient().tolist() if has_gradient else [])
