"""A run's schedule: every sample once a pass, over the slots; reports and evaluations at the same steps everywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.api.agent import report_interval
from weft_data.schedule import BatchPlan
from weft_worker.metrics import MetricSums
from weft_worker.schedule import Schedule


def schedule(slot: int = 0, slots: int = 1, *, rows: int = 10, batch: int = 4, steps: int = 6, **options) -> Schedule:
    settings = {"evaluation": None, "evaluate_every": None, **options}
    return Schedule(BatchPlan(0, rows, batch, 7, True), steps=steps, slot=slot, slots=slots, **settings)


@given(slots=st.integers(1, 6), rows=st.integers(1, 40), batch=st.integers(1, 12), passes=st.integers(1, 3))
def test_the_slots_parts_of_a_pass_are_every_row_once_and_their_shares_add_up_to_one(slots, rows, batch, passes):
    steps = -(-rows // batch) * passes
    schedules = [schedule(slot, slots, rows=rows, batch=batch, steps=steps) for slot in range(slots)]
    seen: list[int] = []
    for step in range(steps):
        parts = [one.at(step) for one in schedules]
        assert sum(part.share for part in parts) == pytest.approx(1.0)
        place = 0
        for part in parts:
            assert part.first_sample == place
            place += len(part.rows)
            seen += part.rows.tolist()
        assert place == parts[0].samples
    assert sorted(seen) == sorted(list(range(rows)) * passes)


@given(slots=st.integers(1, 5), rows=st.integers(1, 40), batch=st.integers(1, 12), steps=st.integers(1, 9))
def test_the_sizes_told_beforehand_are_those_that_come(slots, rows, batch, steps):
    for slot in range(slots):
        one = schedule(slot, slots, rows=rows, batch=batch, steps=steps, evaluation=(rows, rows + 13))
        assert set(one.training_sizes()) >= {len(one.at(step).rows) for step in range(steps)} - {0}
        assert set(one.evaluation_sizes()) == {len(part) for _, part in one.evaluation_batches()}


@given(slots=st.integers(1, 5), held_out=st.integers(1, 30), batch=st.integers(1, 9))
def test_the_slots_evaluate_every_held_out_row_once_in_batches_that_know_their_place(slots, held_out, batch):
    seen = []
    for slot in range(slots):
        one = schedule(slot, slots, rows=10, batch=batch, evaluation=(10, 10 + held_out))
        batches = list(one.evaluation_batches())
        assert all(len(rows) <= batch for _, rows in batches)
        assert all(rows[0] == 10 + first for first, rows in batches)
        seen += [row for _, rows in batches for row in rows.tolist()]
    assert seen == list(range(10, 10 + held_out))


def test_evaluation_follows_each_pass_and_the_end():
    one = schedule(steps=7, evaluation=(10, 12))
    assert [step for step in range(7) if one.at(step).evaluates] == [2, 5, 6]


def test_evaluation_follows_every_so_many_steps_and_the_end():
    one = schedule(steps=7, evaluation=(10, 12), evaluate_every=2)
    assert [step for step in range(7) if one.at(step).evaluates] == [1, 3, 5, 6]


def test_nothing_is_evaluated_without_held_out_rows():
    assert not any(schedule(steps=7, evaluate_every=1).at(step).evaluates for step in range(7))


def test_metrics_are_reported_every_ten_steps_at_the_ends_of_passes_and_at_the_end():
    one = schedule(rows=100, batch=4, steps=33)
    assert [step + 1 for step in range(33) if one.at(step).reports] == [10, 20, 25, 30, 33]


def test_slots_report_and_evaluate_at_the_same_steps():
    schedules = [schedule(slot, 3, rows=10, batch=4, steps=9, evaluation=(10, 11)) for slot in range(3)]
    for step in range(9):
        assert len({(one.at(step).reports, one.at(step).evaluates) for one in schedules}) == 1


def test_a_long_run_reports_less_often():
    assert report_interval(100) == 10
    assert report_interval(1_000_000) == 1000


def test_sums_are_means_times_samples_and_start_again_when_taken():
    sums = MetricSums(["loss"])
    sums.add({"loss": 2.0}, 3, 1)
    sums.add({"loss": 4.0}, 1, 2)
    assert sums.take() == (4, {"loss": 10.0}, {})
    assert sums.take() == (0, {"loss": 0.0}, {})
