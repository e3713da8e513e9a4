from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_data.cut import part
from weft_data.schedule import BatchPlan

starts = st.integers(0, 50)
row_counts = st.integers(1, 120)
batches = st.integers(1, 150)


@given(starts, row_counts, batches, st.booleans())
def test_a_pass_reads_every_row_once_and_no_other(start: int, rows: int, batch: int, shuffle: bool) -> None:
    plan = BatchPlan(start, start + rows, batch, 3, shuffle)
    for pass_number in range(2):
        steps = range(pass_number * plan.steps_per_pass, (pass_number + 1) * plan.steps_per_pass)
        taken = [plan.at(step) for step in steps]
        assert {number for number, _ in taken} == {pass_number}
        assert sorted(np.concatenate([each for _, each in taken])) == list(range(start, start + rows))


@given(row_counts, batches, st.integers(0, 400))
def test_only_the_last_batch_of_a_pass_is_short(rows: int, batch: int, step: int) -> None:
    plan = BatchPlan(0, rows, batch, 0, True)
    last = step % plan.steps_per_pass == plan.steps_per_pass - 1
    left = rows - (plan.steps_per_pass - 1) * batch
    assert plan.samples(step) == len(plan.at(step)[1]) == (left if last else batch)
    assert 1 <= left <= batch


@given(row_counts, batches, st.integers(1, 7), st.integers(0, 50))
def test_slots_together_read_the_global_batch(rows: int, batch: int, slots: int, step: int) -> None:
    """What a step trains on does not depend on the number of workers."""
    samples = BatchPlan(0, rows, batch, 5, True).at(step)[1]
    cuts = [part(len(samples), slot, slots) for slot in range(slots)]
    assert np.array_equal(np.concatenate([samples[start:stop] for start, stop in cuts]), samples)


def test_steps_asked_for_out_of_order_are_the_same() -> None:
    plan = BatchPlan(10, 75, 16, 9, True)
    forward = [plan.at(step)[1].tolist() for step in range(15)]
    backward = [plan.at(step)[1].tolist() for step in reversed(range(15))]
    assert forward == backward[::-1]


def test_a_batch_that_is_written_to_changes_no_later_one() -> None:
    plan = BatchPlan(0, 32, 32, 1, True)
    first = plan.at(0)[1]
    kept = first.copy()
    first[:] = 0
    assert np.array_equal(plan.at(0)[1], kept)


@pytest.mark.parametrize(("start", "stop", "batch"), [(3, 3, 1), (4, 3, 1), (-1, 3, 1), (0, 3, 0)])
def test_a_plan_over_nothing_is_refused(start: int, stop: int, batch: int) -> None:
    with pytest.raises(ValueError, match="none"):
        BatchPlan(start, stop, batch, 0, True)


def test_a_step_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="step -1"):
        BatchPlan(0, 4, 2, 0, True).at(-1)
