"""A unit at its shard's gate: what it measures, and what becomes of its gradient."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import msgspec
import numpy as np
import pytest

from store_cluster import key_of, store_of
from weft_graph.program import Update
from weft_kvstore.arrays import Array
from weft_kvstore.bucket.gate import StepGate
from weft_kvstore.bucket.waiting import PIECE_ELEMENTS
from weft_kvstore.description.records import CommitDescription, LossScaling
from weft_kvstore.rows.rows import Rows
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.tables.steps import Complete, TableGate

NORM = 5.0
"""Of the gradient (3, 4)."""


class Gated:
    """The only unit of a shard with one slot, whose barrier of step 0 is in."""

    def __init__(self, commit: CommitDescription, update: Update = Update.RULE) -> None:
        key = msgspec.structs.replace(key_of("w", (2, 1), 1), rows=True, update=update)
        (unit,) = JobShard(store_of([key], slots=1, shards=1), 0).units
        self.gate = StepGate(commit, 1)
        self.gate.expect(1)
        self.gate.arrive(0, 0)
        self.unit = TableGate(self.gate, unit.spec)

    def passing(self, total: Array | None) -> Complete[Rows] | None:
        return ended(self.unit.passing(Complete(0, 1, None if total is None else rows_of(total))))[0]


def ended(steps: Generator[None, None, Any]) -> tuple[Any, int]:
    """What work gives in the end, and after how many pieces."""
    pieces = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, pieces
        pieces += 1


def rows_of(total: Array) -> Rows:
    """A row for each element, which is where it was."""
    return Rows(np.arange(len(total)), total.reshape(-1, 1))


def gradient() -> Array:
    return np.array([3.0, 4.0], np.float32)


def test_a_step_waits_until_it_is_committed_and_is_measured_once() -> None:
    gated, total = Gated(CommitDescription(clip_norm=1.0)), gradient()
    assert gated.unit.missing(0) is None
    assert gated.passing(total) is None
    assert gated.unit.missing(0) == ("step 0 is measured and waits to be committed", [])
    assert gated.passing(total) is None
    measured = gated.gate.measurement(0)
    assert measured is not None
    assert math.fsum(measured.squares) == NORM**2, "of one unit, though it asked twice"
    gated.gate.commit(0, norm=NORM, finite=True)
    passed = gated.passing(total)
    assert passed is not None
    assert passed.total is not None
    assert np.shares_memory(passed.total.values, total)
    np.testing.assert_allclose(total, gradient() / NORM, rtol=1e-6)


def test_a_step_that_is_skipped_has_no_gradient() -> None:
    gated = Gated(CommitDescription(loss_scaling=LossScaling(2.0, 1000)))
    assert gated.passing(np.array([np.inf, 1.0], np.float32)) is None
    measured = gated.gate.measurement(0)
    assert measured is not None
    assert not measured.finite
    gated.gate.commit(0, norm=math.inf, finite=False)
    assert gated.passing(gradient()) == Complete(0, 0, None)


def test_the_scale_of_the_loss_is_taken_off_before_it_is_measured() -> None:
    gated, total = Gated(CommitDescription(loss_scaling=LossScaling(2.0, 1000))), 2 * gradient()
    assert gated.passing(total) is None
    measured = gated.gate.measurement(0)
    assert measured is not None
    assert math.fsum(measured.squares) == NORM**2
    gated.gate.commit(0, norm=NORM, finite=True)
    assert gated.passing(total) is not None
    assert np.array_equal(total, gradient())


@pytest.mark.parametrize("total", [gradient(), None])
def test_a_mean_is_neither_measured_nor_clipped_and_nor_is_nothing(total: Array | None) -> None:
    gated = Gated(CommitDescription(clip_norm=1.0), Update.RULE if total is None else Update.MEAN)
    assert gated.passing(total) is None
    measured = gated.gate.measurement(0)
    assert measured is not None
    assert math.fsum(measured.squares) == 0
    gated.gate.commit(0, norm=NORM, finite=True)
    passed = gated.passing(total)
    assert passed is not None
    assert total is None or np.array_equal(total, gradient())


def test_a_long_gradient_is_measured_in_pieces() -> None:
    gated = Gated(CommitDescription(clip_norm=1.0))
    total = np.ones(2 * PIECE_ELEMENTS + 1, np.float32)
    found, pieces = ended(gated.unit.passing(Complete(0, 1, rows_of(total))))
    assert (found, pieces) == (None, 3)
    measured = gated.gate.measurement(0)
    assert measured is not None
    assert math.fsum(measured.squares) == len(total)
