"""Jobs that end before their last step, by what their evaluations say, and those whose loss is not finite."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from server_control import World
from server_running import DEADLINE_S, running, submit
from server_specs import plan, save_rows, spec_json
from weft.api.agent import AgentKind, MetricReport, SetDone, SnapshotDone, SnapshotFile, WorkerAllocation
from weft.api.job import KeepBest, StopWhen
from weft.api.lifecycle import AllocationEvent, JobState
from weft.api.problem import Problem
from weft.api.store import CommitSpec, LossScalingSpec
from weft_server.control.ending import best_of, evaluated
from weft_server.control.limits import Limits
from weft_server.planning.plan import Given, JobPlan

WORKER, SHARD = AgentKind.WORKER, AgentKind.SHARD
EVERY = 10


@pytest.mark.parametrize(
    ("when", "values", "why"),
    [
        ({"patience": 2}, [3.0, 2.0, 2.5, 2.0], "loss has not improved since step 2, in 2 evaluations"),
        ({"patience": 1, "mode": "max"}, [3.0, 2.0], "loss has not improved since step 1, in 1 evaluations"),
        ({"reaches": 0.5}, [1.0, 0.7, 0.5], "loss is 0.5, which reaches 0.5"),
        ({"reaches": 0.9, "mode": "max"}, [0.5, 0.95], "loss is 0.95, which reaches 0.9"),
        ({"after_s": 3.0}, [1.0, 2.0, 3.0], "3 s have passed"),
        ({"patience": 2}, [1.0, math.nan, math.nan], "loss has not improved since step 1, in 2 evaluations"),
    ],
)
def test_a_job_stops_at_the_first_evaluation_that_says_so(when: dict[str, Any], values: list[float], why: str) -> None:
    known: dict[int, float] = {}
    told = []
    for step, value in enumerate(values, 1):
        known, reason = evaluated(StopWhen(**when), known, step, {"loss": value}, passed_s=step)
        told.append(reason)
    assert told == [None] * (len(values) - 1) + [why]


def test_the_best_is_the_first_of_equals_and_is_known_however_many_come() -> None:
    when, known = StopWhen(reaches=0.0), dict[int, float]()
    for step in range(1, 200):
        loss = 1.0 if step < 5 else 0.5 if step < 8 else 2.0
        known, _ = evaluated(when, known, step, {"loss": loss}, passed_s=0.0)
    assert (best_of(when, known), len(known) < 20) == (5, True)
    assert best_of(when, {1: math.nan}) is None


class Playing:
    """A job of one shard and two workers, played evaluation by evaluation."""

    def __init__(self, **changes: Any) -> None:
        self.world = World(Limits(snapshots="/snapshots", suspected_after_s=1e6, lost_after_s=1e6))
        self.plan = plan(**{"steps": 1000, "evaluate_every": EVERY, "max_restarts": 3, **changes})
        self.world.agents()
        self.world.submit(self.plan)
        self.world.bring_to(JobState.RUNNING)
        self.written: set[int] = set()

    def metric(self, step: int, loss: float, split: str = "evaluate", bad_data: str = "") -> None:
        for slot in range(2):
            lease = self.world.lease(WORKER, slot)
            if self.world.jobs["job"].state is JobState.RUNNING:
                sums = {"loss": 4 * loss}
                metric = MetricReport(split=split, step=step, samples=4, sums=sums, bad_data=bad_data)  # type: ignore[arg-type]
                self.world.report(lease, metrics=[metric], step=step)

    def write(self) -> int | None:
        """The shard writes what is ordered, if anything: its step."""
        self.world.tick()
        shard = self.world.lease(SHARD, 0)
        for order in self.world.orders(shard.agent).snapshots:
            file = SnapshotFile(name="shard-0.safetensors", nbytes=8, sha256="0" * 64)
            self.world.report(shard, snapshot=SnapshotDone(step=order.step, file=file))
            return order.step
        return None

    def look(self) -> None:
        """The server looks at a snapshot whose step has passed."""
        self.world.tick()
        while self.world.to_check:
            snapshot = self.world.to_check.pop().snapshot
            self.world.carry_out(self.world.controller.snapshot_checked("job", snapshot.step, None, self.world.now))

    def evaluate(self, *losses: float, first: int = EVERY) -> None:
        """Evaluation after evaluation, a snapshot at each that one is ordered for."""
        for number, loss in enumerate(losses):
            self.world.tick(2 * EVERY)  # Two seconds a step: a snapshot is ordered for each evaluation.
            self.write()
            self.metric(first + number * EVERY, loss)
            self.look()

    def result(self) -> tuple[int, int]:
        """Leads a stopped job to its end: from which step it was trained again, and up to which."""
        self.world.all_report(SHARD, AllocationEvent.READY)
        (allocation,) = self.world.orders(self.world.lease(WORKER, 0).agent).allocations
        assert isinstance(allocation, WorkerAllocation)
        self.world.all_report(WORKER, AllocationEvent.READY)
        self.world.all_report(WORKER, AllocationEvent.RUNNING)
        self.metric(allocation.steps, 1.0)  # It is evaluated again.
        self.world.all_report(WORKER, AllocationEvent.DONE, step=allocation.steps)
        self.world.keep()
        if self.world.jobs["job"].state is JobState.FINISHING:
            assert self.write() == allocation.steps
            self.look()
        assert self.world.jobs["job"].state is JobState.SUCCEEDED
        assert self.world.jobs["job"].progress.step == allocation.steps
        return 0 if allocation.snapshot is None else allocation.snapshot.step, allocation.steps


def test_the_result_is_of_the_best_evaluation_computed_again_from_the_snapshot_before_it() -> None:
    job = Playing(stop_when=StopWhen(patience=6), snapshot_every_s=35.0)
    job.evaluate(3.0, 2.0, 1.0, *([2.0] * 6))
    first, end = job.result()
    assert (end, 0 < first < 3 * EVERY) == (3 * EVERY, True)
    reason = "stopped at step 30: loss has not improved since step 30, in 6 evaluations"
    assert job.world.jobs["job"].reason == reason
    assert job.world.jobs["job"].snapshot == end  # What it goes on from later.


def test_without_a_snapshot_before_it_the_job_is_trained_again_from_its_first_step() -> None:
    job = Playing(stop_when=StopWhen(reaches=0.5))
    job.evaluate(3.0, 0.4)
    assert job.result() == (0, 2 * EVERY)


def test_a_server_that_starts_again_knows_the_best() -> None:
    job = Playing(stop_when=StopWhen(patience=3), snapshot_every_s=15.0)
    job.evaluate(2.0, 1.0, 2.0, 2.0)
    job.world.begin_again(job_plan=job.plan)
    job.world.agents()
    job.world.bring_to(JobState.RUNNING)
    job.evaluate(2.0, first=5 * EVERY)
    assert job.result()[1] == 2 * EVERY


def test_a_job_that_came_to_its_end_has_the_best_of_all_its_evaluations() -> None:
    job = Playing(stop_when=StopWhen(patience=50), steps=40, snapshot_every_s=15.0)
    job.evaluate(2.0, 1.0, 3.0)
    job.metric(40, 1.5)
    job.world.all_report(WORKER, AllocationEvent.DONE, step=40)
    assert job.result()[1] == 2 * EVERY
    assert "its evaluation is the best" in (job.world.jobs["job"].reason or "")


def test_a_job_that_keeps_its_best_is_trained_to_its_end_and_has_the_best_ones_values() -> None:
    job = Playing(keep_best=KeepBest(metric="loss", mode="max"), steps=60, snapshot_every_s=15.0)
    job.evaluate(1.0, 3.0, 2.0, 2.0, 2.0)
    job.metric(60, 1.0)
    assert job.world.jobs["job"].state is JobState.RUNNING
    job.world.all_report(WORKER, AllocationEvent.DONE, step=60)
    assert job.world.jobs["job"].progress.step < 60
    assert job.result()[1] == 2 * EVERY


def test_a_job_whose_last_evaluation_is_its_best_ends_as_any_other() -> None:
    job = Playing(stop_when=StopWhen(patience=50), steps=40)
    job.evaluate(2.0, 1.5, 1.2)
    job.metric(40, 1.0)
    job.world.all_report(WORKER, AllocationEvent.DONE, step=40)
    job.world.keep()
    assert (job.world.jobs["job"].state, job.world.jobs["job"].reason) == (JobState.SUCCEEDED, None)


def test_a_job_whose_values_were_set_has_those_of_its_next_snapshot() -> None:
    """What was computed before cannot be computed again."""
    job = Playing(stop_when=StopWhen(patience=2), snapshot_every_s=1000.0)
    job.evaluate(1.0, 2.0)
    _, instructions = job.world.controller.ask_set("job", Given(names=["w"], file="f"), job.world.now)
    job.world.carry_out(instructions)
    keeper = job.world.controller.run_of("job").keeper  # type: ignore[union-attr]
    job.world.report(keeper, sets=[SetDone(number=1, step=25)])
    job.evaluate(2.0, first=3 * EVERY)
    assert job.world.jobs["job"].state is JobState.RUNNING
    step = job.write()
    assert step is not None
    job.metric(step + 1, 2.0, "train")
    job.look()
    assert job.result() == (step, step)


def test_a_loss_that_is_not_finite_fails_the_job_which_keeps_its_snapshot_from_before() -> None:
    job = Playing(on_nan="fail", snapshot_every_s=0.1)
    job.evaluate(1.0, 1.0, 1.0)
    before = job.world.jobs["job"].snapshot
    assert before
    job.metric(500, math.nan, "train")
    told = job.world.jobs["job"]
    assert (told.state, told.snapshot) == (JobState.FAILED, before)
    assert told.reason == (
        'the loss is nan since step 500: try a smaller lr or clip_norm=1.0, or on_nan="skip"; '
        f"the snapshot of step {before} is from before"
    )
    assert len(job.world.in_use["job"]) == 1


@pytest.mark.parametrize("on_nan", ["fail", "skip", "go_on"])
def test_evaluation_data_that_is_not_finite_fails_a_job_as_training_data_does(on_nan: str) -> None:
    job = Playing(on_nan=on_nan)
    job.metric(EVERY, math.nan)
    assert job.world.jobs["job"].state is JobState.RUNNING  # Of the values, not of the data: training says so.
    job.metric(2 * EVERY, math.nan, bad_data="row 7 of column 'x'")
    told = job.world.jobs["job"]
    assert told.state is (JobState.FAILED if on_nan == "fail" else JobState.RUNNING)
    if on_nan == "fail":
        where = f"the loss of the evaluation after step {2 * EVERY} is nan"
        assert told.reason == f"{where}, and row 7 of column 'x' is not finite: correct the data"


@pytest.mark.parametrize(
    "changes",
    [
        {"on_nan": "go_on"},
        {"on_nan": "skip", "commit": CommitSpec(skip=True)},
        {"on_nan": "fail", "commit": CommitSpec(loss_scaling=LossScalingSpec())},
    ],
    ids=str,
)
def test_it_goes_on_where_it_may_and_where_such_steps_are_skipped(changes: dict[str, Any]) -> None:
    job = Playing(**changes)
    job.metric(500, math.inf, "train")
    assert job.world.jobs["job"].state is JobState.RUNNING


def test_what_cannot_be_looked_at_is_refused_by_its_field(tmp_path: Path) -> None:
    document = spec_json(save_rows(tmp_path / "rows.npz"), stop_when={"patience": 2})
    unevaluated = {**document, "data": {**document["data"], "evaluate": None}}
    with running(tmp_path / "server", lost_after_s=DEADLINE_S) as client:
        for changed, pointer, says in (
            ({**document, "stop_when": {"metric": "accuracy", "patience": 2}}, "/stop_when/metric", "has no metric"),
            (unevaluated, "/stop_when", "it needs evaluations: give the data rows for them"),
            ({**document, "parallelism": {"mode": "async"}}, "/stop_when", "which is exact in sync mode only"),
        ):
            answer = submit(client, changed)
            problem = Problem.model_validate(answer.json())
            assert (answer.status_code, [error.pointer for error in problem.errors]) == (422, [pointer])
            assert says in problem.errors[0].detail
            if "stop_when" in pointer:
                other = {
                    **changed,
                    "stop_when": None,
                    "keep_best": {"metric": changed["stop_when"].get("metric", "loss")},
                }
                assert pointer.replace("stop_when", "keep_best") in submit(client, other).text
        both = submit(client, {**document, "keep_best": {}}).text
        assert "stop_when keeps the best by its own metric" in both
        assert "give patience, reaches or after_s" in submit(client, {**document, "stop_when": {}}).text


def test_a_plan_of_an_earlier_release_goes_on_whatever_its_loss() -> None:
    kept = plan().model_dump()
    for name in ("stop_when", "on_nan", "resume", "snapshot_every_s"):
        del kept[name]
    assert JobPlan.model_validate(kept).on_nan == "go_on"


@pytest.mark.parametrize("hours", [1, -1])
def test_a_job_that_ends_after_some_time_takes_no_notice_of_a_calendar_that_is_set(hours: int) -> None:
    job = Playing(stop_when={"after_s": 100.0})
    job.world.tick(40.0)
    job.world.set_by_s = hours * 3600.0
    job.evaluate(1.0)
    assert job.world.jobs["job"].reason is None
    job.world.tick(50.0)
    job.evaluate(1.0, first=2 * EVERY)
    assert any("the job stops: 100 s have passed" in line for line in job.world.said())
