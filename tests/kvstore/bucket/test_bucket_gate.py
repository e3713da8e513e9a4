"""Slices of a bucket at their shard's gate: what they measure, and what becomes of their sums."""

from __future__ import annotations

import math

import numpy as np
import pytest

from weft_kvstore.arrays import Array, Segment
from weft_kvstore.bucket.arrays import Gradient, SliceSum
from weft_kvstore.bucket.gate import GatedSums, StepGate
from weft_kvstore.description.records import CommitDescription, LossScaling

NORM = 13.0
"""Of the gradient (3, 4 | 12)."""
CLIPPED = CommitDescription(clip_norm=1.0)
SCALED = CommitDescription(loss_scaling=LossScaling(2.0, 1000))


class Gated:
    """A slice of two elements and one of one element, of step 0, and a slot whose barrier is in."""

    bounds = np.array([0, 2, 3])

    def __init__(self, commit: CommitDescription, gradient: Array | None, *, is_summed: bool = True) -> None:
        self.gradient = gradient
        self.gate = StepGate(commit, 1)
        self.gate.expect(2)
        self.gate.arrive(0, 0)
        self.sums = GatedSums(self.gate, self.bounds, is_summed=is_summed, unscaled=False)

    def measure(self, first: int, stop: int) -> None:
        one = None
        if self.gradient is not None:
            elements = self.gradient[self.bounds[first] : self.bounds[stop]].copy()
            one = Gradient(self.bounds, first, stop, [[Segment(first, stop, elements)]])
        self.sums.measure(0, SliceSum(first, stop, one, int(one is not None)))

    @property
    def squares(self) -> float:
        found = self.gate.measured(0)
        assert found is not None
        return math.fsum(found.squares) if found.finite else math.inf

    def taken(self, first: int, stop: int) -> list[float] | None:
        found = self.sums.take(0, first, stop)
        return None if found is None else [n for one in found if one.gradient for n in one.gradient.total().tolist()]


def gradient() -> Array:
    return np.array([3.0, 4.0, 12.0], np.float32)


def test_slices_wait_until_all_are_measured_and_the_step_is_committed() -> None:
    gated = Gated(CLIPPED, gradient())
    gated.measure(0, 1)
    assert gated.gate.measured(0) is None, "of one slice of two"
    gated.measure(1, 2)
    assert gated.squares == NORM**2
    assert gated.taken(0, 2) is None
    gated.gate.commit(0, norm=NORM, finite=True)
    for first, stop, wanted in [(1, 2, [12.0 / NORM]), (0, 1, [3.0 / NORM, 4.0 / NORM])]:
        np.testing.assert_allclose(gated.taken(first, stop), wanted, rtol=1e-6)


def test_sums_of_a_step_that_is_skipped_are_dropped() -> None:
    gated = Gated(SCALED, np.array([np.inf, 1.0, 1.0], np.float32))
    gated.measure(0, 2)
    assert gated.squares == math.inf
    gated.gate.commit(0, norm=math.inf, finite=False)
    assert gated.taken(0, 2) == []


def test_the_scale_of_the_loss_is_taken_off_before_it_is_measured() -> None:
    gated = Gated(SCALED, 2 * gradient())
    gated.measure(0, 2)
    assert gated.squares == NORM**2
    gated.gate.commit(0, norm=NORM, finite=True)
    assert gated.taken(0, 2) == gradient().tolist()


@pytest.mark.parametrize("has_gradient", [True, False])
def test_a_mean_is_neither_measured_nor_clipped_and_nor_is_nothing(has_gradient: bool) -> None:
    gated = Gated(CLIPPED, gradient() if has_gradient else None, is_summed=False)
    gated.measure(0, 2)
    assert gated.squares == 0
    gated.gate.commit(0, norm=NORM, finite=True)
    assert gated.taken(0, 2) == (gradient().tolist() if has_gradient else [])
