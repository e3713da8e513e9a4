"""Watching: a bar on a terminal, lines elsewhere, nothing that the job's words could break."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from rich.console import Console

import weft
from sdk_fakes import answers, event, job, sse, stream
from weft.api.event import Event, LogLine, MetricTaken, StateChanged, StepDone
from weft.api.lifecycle import JobState
from weft.event_stream import Notice
from weft.watch import RunView, shown, watch

EVENTS = [
    event(1, StateChanged(state=JobState.PENDING, reason="1 worker is missing")),
    event(2, StateChanged(state=JobState.RUNNING), 1),
    event(3, StepDone(step=4, steps=20, pass_number=1, samples_per_second=1234.4), 2),
    event(4, LogLine(level="warning", source="worker 0", message="[red]not markup[/red] [/]"), 3),
    event(5, StepDone(step=8, steps=20, pass_number=1, samples_per_second=2000), 4),
    event(6, MetricTaken(split="train", step=10, values={"loss": 0.25, "accuracy": 0.5}, samples=640), 5),
    event(7, MetricTaken(split="evaluate", step=10, values={"loss": 0.5, "accuracy": 0.75}, samples=360), 5),
    event(8, StepDone(step=16, steps=20, pass_number=2, samples_per_second=2000), 13),
    event(9, StateChanged(state=JobState.SUCCEEDED), 14),
]


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=200, color_system=None)


def written(to: Console) -> str:
    assert isinstance(to.file, io.StringIO)
    return to.file.getvalue()


def test_without_a_terminal_there_are_plain_lines_in_order() -> None:
    to = console(terminal=False)
    watch(EVENTS, job(), to)
    assert written(to).splitlines() == [
        "job job-1 (digits)",
        "pending: 1 worker is missing",
        "running",
        "step 4/20  pass 1  1,234 samples/s",
        "worker 0: [red]not markup[/red] [/]",
        "10/20  train loss 0.2500 accuracy 0.5000  eval loss 0.5000 accuracy 0.7500",
        "step 16/20  pass 2  2,000 samples/s  loss 0.2500  accuracy 0.5000",
        "succeeded",
    ]


def test_on_a_terminal_the_bar_has_step_rate_and_metrics_and_lines_stay_above() -> None:
    to = console(terminal=True)
    view = watch(EVENTS, job(), to)
    screen = written(to)
    for part in ("16/20", "2,000 samples/s", "loss 0.2500", "eval loss 0.5000", "[red]not markup[/red] [/]"):
        assert part in screen
    assert (view.step, view.steps, view.pass_number, view.state) == (16, 20, 2, "succeeded")


def test_a_narrow_terminal_keeps_steps_and_metrics_and_drops_the_rate() -> None:
    to = Console(file=io.StringIO(), force_terminal=True, width=60, color_system=None)
    watch(EVENTS, job(), to)
    last = [line for line in written(to).splitlines() if "16/20" in line][-1]
    assert "loss 0.2500" in last
    assert "samples/s" not in last


def test_what_a_job_waits_for_is_said_once() -> None:
    to = console(terminal=False)
    watch([Notice("pending: needs 5 workers; 2 are registered"), *EVENTS[1:]], job(), to)
    assert written(to).splitlines()[1:3] == ["pending: needs 5 workers; 2 are registered", "running"]


def test_leaving_by_ctrl_c_says_that_the_job_goes_on() -> None:
    def interrupted() -> Iterator[Event]:
        yield EVENTS[1]
        raise KeyboardInterrupt

    to = console(terminal=False)
    with pytest.raises(KeyboardInterrupt):
        watch(interrupted(), job(), to)
    assert "job job-1 goes on" in written(to)
    assert "logs -f job-1" in written(to)


def test_progress_lines_are_ten_seconds_apart_in_the_job_s_time() -> None:
    view = RunView(steps=100)

    def line(seq: int, at_s: float) -> str | None:
        done: Event = event(seq, StepDone(step=seq, steps=100, pass_number=1, samples_per_second=1), at_s)
        view.take(done)
        return view.plain_progress(done)

    assert [line(n, at) is not None for n, at in enumerate([0, 5, 9.9, 10, 12, 20])] == [
        True, False, False, True, False, True,
    ]  # fmt: skip


def test_the_loss_stands_first() -> None:
    assert shown({"accuracy": 0.5, "loss": 2, "a": 1}) == "loss 2.0000  a 1.0000  accuracy 0.5000"
    assert shown({"loss": float("nan")}) == "loss nan"


def test_watching_a_handle_gives_the_finished_job() -> None:
    finished = job(state=JobState.SUCCEEDED, metrics={"evaluate/loss": 0.5})
    script = answers(stream(sse(EVENTS)), finished)
    handle = weft.JobHandle(script.client().http, job())
    assert handle.watch(console(terminal=False)) == finished


def test_watching_a_job_that_fails_raises_its_reason() -> None:
    failed = event(1, StateChanged(state=JobState.FAILED, reason="worker 1 was lost"))
    script = answers(stream(sse([failed])), job(state=JobState.FAILED, reason="worker 1 was lost"))
    with pytest.raises(weft.JobFailedError, match="worker 1 was lost"):
        weft.JobHandle(script.client().http, job()).watch(console(terminal=False))
