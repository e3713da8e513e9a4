"""Slices of a bucket at their shard's gate: what they measure, and what becomes of their sums."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from store_cluster import advanced, constant, key_of, store_of
from weft_graph.program import Update
from weft_kvstore.arrays import Array, Segment
from weft_kvstore.description.records import CommitDescription, LossScaling
from weft_kvstore.shard.job_shard import JobShard

NORM = 13.0
"""Of the gradient (3, 4 | 12)."""
CLIPPED = CommitDescription(clip_norm=1.0)
SCALED = CommitDescription(loss_scaling=LossScaling(2.0, 1000))


class Gated:
    """A slice of two elements and one of one element, of step 0, and a slot whose barrier is in."""

    def __init__(
        self,
        commit: CommitDescription,
        gradient: Array | None,
        update: Update = Update.GRADIENT,
        dtype: str = "float32",
    ) -> None:
        self.gradient = None if gradient is None else gradient.astype(dtype)
        key = msgspec.structs.replace(constant(key_of("w", [3], 1), 0.0), update=update, dtype=dtype)
        description = store_of([key], slots=1, shards=1, slice_bytes=2 * np.dtype(dtype).itemsize)
        self.shard = JobShard(msgspec.structs.replace(description, commit=commit), 0)
        (self.bucket,) = self.shard.buckets.values()
        self.gate = self.shard.step_gate("")
        self.gate.arrive(0, 0)

    def measure(self, first: int, stop: int) -> None:
        bounds = self.bucket.bounds
        elements = None if self.gradient is None else self.gradient[bounds[first] : bounds[stop]].copy()
        (due,) = self.bucket.accept(0, 0, Segment(first, stop, elements))
        assert not list(advanced(self.bucket, *due)), "it is not committed"

    @property
    def squares(self) -> float:
        found = self.gate.measured(0)
        assert found is not None
        return math.fsum(found.squares) if found.finite else math.inf

    def taken(self, first: int, stop: int) -> list[float] | None:
        """What the slices have become; None where their step is not applied."""
        list(advanced(self.bucket, first, stop))
        if not self.bucket.versions[first:stop].all():
            return None
        return [float(one) for _, _, some in self.bucket.update.values.elements(first, stop) for one in some]


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
    assert gated.taken(0, 2) == [0.0, 0.0, 0.0]


def test_the_scale_of_the_loss_is_taken_off_before_it_is_measured() -> None:
    gated = Gated(SCALED, 2 * gradient())
    gated.measure(0, 2)
    assert gated.squares == NORM**2
    gated.gate.commit(0, norm=NORM, finite=True)
    assert gated.taken(0, 2) == gradient().tolist()


@pytest.mark.parametrize("has_gradient", [True, False])
@pytest.mark.parametrize(("update", "dtype"), [(Update.MEAN, "float32"), (Update.GRADIENT, "int32")])
def test_a_mean_is_neither_measured_nor_clipped_and_nor_are_whole_numbers_and_nothing(
    has_gradient: bool, update: Update, dtype: str
) -> None:
    gated = Gated(CLIPPED, gradient() if has_gradient else None, update, dtype)
    gated.measure(0, 2)
    assert gated.squares == 0
    gated.gate.commit(0, norm=NORM, finite=True)
    assert gated.taken(0, 2) == (gradient().tolist() if has_gradient else [0.0, 0.0, 0.0])
