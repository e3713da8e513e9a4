"""Adding slots' metrics up."""

from __future__ import annotations

import math

from weft.api.agent import MetricReport
from weft_server.control.memory import Parts
from weft_server.control.metrics import MOST_OPEN, MetricSums


def report(step: int, samples: int = 1, **sums: float) -> MetricReport:
    return MetricReport(split="train", step=step, samples=samples, sums=sums)


def test_a_slot_without_samples_counts_as_reported() -> None:
    sums = MetricSums(2, Parts())
    assert sums.add(0, report(1, 4, loss=8.0)) is None
    taken = sums.add(1, report(1, 0, loss=0.0))
    assert taken is not None
    assert (taken.values, taken.samples) == ({"loss": 2.0}, 4)


def test_a_step_without_any_samples_gives_no_metric() -> None:
    assert MetricSums(1, Parts()).add(0, report(1, 0, loss=0.0)) is None


def test_a_slots_second_report_of_a_step_is_ignored() -> None:
    sums = MetricSums(2, Parts())
    sums.add(0, report(1, 1, loss=1.0))
    assert sums.add(0, report(1, 1, loss=9.0)) is None
    taken = sums.add(1, report(1, 1, loss=3.0))
    assert taken is not None
    assert taken.values == {"loss": 2.0}


def test_splits_of_one_step_are_apart() -> None:
    sums = MetricSums(1, Parts())
    evaluated = sums.add(0, MetricReport(split="evaluate", step=1, samples=1, sums={"loss": 3.0}))
    assert evaluated is not None
    assert evaluated.split == "evaluate"


def test_a_loss_that_is_not_finite_is_told_as_it_is() -> None:
    taken = MetricSums(1, Parts()).add(0, report(1, 2, loss=math.nan))
    assert taken is not None
    assert math.isnan(taken.values["loss"])


def test_what_is_never_completed_is_bounded() -> None:
    """A slot that reports steps which the other never does cannot fill the memory."""
    sums = MetricSums(2, Parts())
    for step in range(MOST_OPEN + 10):
        sums.add(0, report(step, 1, loss=1.0))
    assert sums.add(1, report(0, 1, loss=1.0)) is None
    assert sums.add(1, report(MOST_OPEN + 5, 1, loss=1.0)) is not None
