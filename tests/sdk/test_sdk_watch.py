"""Watching: a bar on a terminal, lines elsewhere, nothing that the job's words could break."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Literal

import pytest
from rich.console import Console

import weft
from sdk_fakes import answers, event, job, sse, states, stream, unavailable
from weft.api.event import Event, LogLine, MetricTaken, StateChanged, StepDone
from weft.api.lifecycle import JobState
from weft.command_line import command
from weft.event_stream import Notice
from weft.watch import TAIL, RunView, mean, shown, watch

EVENTS = [
    event(1, StateChanged(state=JobState.PENDING, reason="1 worker is missing")),
    event(2, StateChanged(state=JobState.RUNNING), 1),
    event(3, StepDone(step=4, steps=20, epoch=1, samples_per_second=1234.4), 2),
    event(4, LogLine(level="warning", source="worker 0", message="[red]not markup[/red] [/]"), 3),
    event(5, StepDone(step=8, steps=20, epoch=1, samples_per_second=2000), 4),
    event(6, MetricTaken(split="train", step=10, values={"loss": 0.25, "accuracy": 0.5}, samples=640), 5),
    event(7, MetricTaken(split="evaluate", step=10, values={"loss": 0.5, "accuracy": 0.75}, samples=360), 5),
    event(8, StepDone(step=16, steps=20, epoch=2, samples_per_second=2000), 13),
    event(9, StateChanged(state=JobState.SUCCEEDED), 14),
]


def console(*, terminal: bool, width: int = 200) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None)


def written(to: Console) -> str:
    assert isinstance(to.file, io.StringIO)
    return to.file.getvalue()


def test_without_a_terminal_there_are_plain_lines_in_order() -> None:
    to = console(terminal=False)
    watch(EVENTS, job(), to)
    assert written(to).splitlines() == [
        "job job-1 (digits): running, step 3/10",
        "pending: 1 worker is missing",
        "running",
        "step 4/20  epoch 1  1,234 samples/s",
        "worker 0: [red]not markup[/red] [/]",
        "10/20  train loss 0.2500 accuracy 0.5000  eval loss 0.5000 accuracy 0.7500",
        "step 16/20  epoch 2  2,000 samples/s  train loss 0.2500 accuracy 0.5000",
        "succeeded",
    ]


def test_on_a_terminal_the_bar_has_step_rate_and_metrics_and_lines_stay_above() -> None:
    to = console(terminal=True)
    view = watch(EVENTS, job(), to)
    screen = written(to)
    for part in ("16/20", "2,000 samples/s", "loss 0.2500", "eval loss 0.5000", "[red]not markup[/red] [/]"):
        assert part in screen
    assert (view.step, view.steps, view.epoch, view.state) == (16, 20, 2, "succeeded")


def test_a_narrow_terminal_keeps_steps_and_metrics_and_drops_the_rate() -> None:
    to = Console(file=io.StringIO(), force_terminal=True, width=60, color_system=None)
    watch(EVENTS, job(), to)
    last = [line for line in written(to).splitlines() if "16/20" in line][-1]
    assert "loss 0.2500" in last
    assert "samples/s" not in last


def test_a_job_that_is_trained_again_tells_no_metrics_of_its_first_run_at_its_end() -> None:
    why = "stopped at step 10: accuracy has not improved; it is trained again from step 0 up to there"
    to = console(terminal=False)
    evaluated = MetricTaken(split="evaluate", step=10, values={"loss": 0.5}, samples=360)
    of_the_first = MetricTaken(split="train", step=14, values={"loss": 0.25}, samples=640)
    watch(
        [
            event(1, StateChanged(state=JobState.RUNNING)),
            event(2, evaluated),
            event(3, of_the_first),
            event(4, StepDone(step=14, steps=20, epoch=1, samples_per_second=1), 1),
            event(5, StateChanged(state=JobState.STOPPING, reason=why), 1),
            event(6, StateChanged(state=JobState.RUNNING), 1),
            event(7, StepDone(step=10, steps=20, epoch=1, samples_per_second=1), 2),
            event(8, StateChanged(state=JobState.FINISHING), 2),
            event(9, StateChanged(state=JobState.SUCCEEDED), 2),
        ],
        job(),
        to,
    )
    assert written(to).splitlines()[-4:] == [
        f"stopping: {why}",
        "running",
        "finishing: the result is being saved",
        "succeeded",
    ]


def test_the_line_of_a_pass_has_the_mean_of_its_steps_and_of_no_other_s() -> None:
    def taken(seq: int, split: Literal["train", "evaluate"], loss: float, samples: int) -> Event:
        return event(seq, MetricTaken(split=split, step=seq, values={"loss": loss}, samples=samples))

    to = console(terminal=False)
    watch(
        [
            taken(1, "train", 4.0, 30), taken(2, "train", 1.0, 10), taken(3, "evaluate", 0.5, 5),
            taken(4, "train", 1.0, 20), taken(5, "evaluate", 0.25, 5), taken(6, "evaluate", 0.25, 5),
        ],
        job(), to,
    )  # fmt: skip
    assert written(to).splitlines()[1:] == [
        " 3/10  train loss 3.2500  eval loss 0.5000",
        " 5/10  train loss 1.0000  eval loss 0.2500",
        " 6/10  eval loss 0.2500",
    ]


def test_after_a_loss_no_metrics_are_shown_that_the_run_which_goes_on_has_not_reached() -> None:
    def step(seq: int, step: int, at: float) -> Event:
        return event(seq, StepDone(step=step, steps=100, epoch=1, samples_per_second=10), at)

    def metric(seq: int, step: int, loss: float) -> Event:
        return event(seq, MetricTaken(split="train", step=step, values={"loss": loss}, samples=10), seq)

    to = console(terminal=False)
    watch(
        [
            metric(1, 10, 4.0), step(2, 15, 10), metric(3, 40, 0.5), step(4, 45, 20),
            step(5, 41, 30),  # from a snapshot behind the metric
            step(6, 12, 40), step(7, 20, 50), metric(8, 50, 0.25), step(9, 50, 60),
        ],
        job(), to,
    )  # fmt: skip
    assert [line.partition("samples/s")[2].strip() for line in written(to).splitlines()[1:]] == [
        "train loss 4.0000",
        "train loss 0.5000",
        "train loss 0.5000",
        "",
        "",
        "train loss 0.2500",
    ]


def test_a_job_that_runs_is_watched_from_its_last_events_on() -> None:
    finished = job(state=JobState.SUCCEEDED)
    script = answers(stream(sse(EVENTS[4:])), finished)
    to = console(terminal=False)
    weft.JobHandle(script.client().http, job()).watch(to)
    assert script.requests[0].url.params["tail"] == str(TAIL)
    assert written(to).splitlines() == [
        "job job-1 (digits): running, step 3/10",
        f"4 earlier events are left out; {command('logs job-1 --all')} prints all",
        "step 8/20  epoch 1  2,000 samples/s",
        "10/20  eval loss 0.5000 accuracy 0.7500",  # steps of which nothing is known have a part in the mean
        "succeeded",
    ]


def test_a_job_without_evaluations_ends_with_its_last_loss() -> None:
    def taken(seq: int, loss: float) -> Event:
        return event(seq, MetricTaken(split="train", step=seq, values={"loss": loss}, samples=32))

    to = console(terminal=False)
    watch([taken(1, 2.0), taken(2, 1.0), *states("finishing", "succeeded")], job(), to)
    assert written(to).splitlines()[1:] == [
        " 2/10  train loss 1.0000",
        "finishing: the result is being saved",
        "succeeded",
    ]


def test_what_a_job_waits_for_is_said_once() -> None:
    to = console(terminal=False)
    watch([Notice("pending: needs 5 workers; 2 are registered"), *EVENTS[1:]], job(), to)
    assert [line for line in written(to).splitlines() if "earlier" not in line][1:3] == [
        "pending: needs 5 workers; 2 are registered",
        "running",
    ]


def test_progress_lines_are_ten_seconds_apart_in_the_job_s_time() -> None:
    view = RunView(steps=100)

    def line(seq: int, at_s: float) -> str | None:
        done: Event = event(seq, StepDone(step=seq, steps=100, epoch=1, samples_per_second=1), at_s)
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


def test_a_job_that_waits_says_what_for_each_time_that_changes() -> None:
    def waits(reason: str) -> object:
        return job(state=JobState.PENDING, reason=reason)

    script = answers(
        waits("needs 5 workers; 2 are registered"), waits("needs 5 workers; 2 are registered"), unavailable,
        unavailable, unavailable, unavailable, waits("needs 5 workers; 3 are registered"), job(),
        stream(sse(states("pending", "running", "succeeded"))), job(state=JobState.SUCCEEDED),
    )  # fmt: skip
    to = console(terminal=False)
    weft.JobHandle(script.client().http, job(state=JobState.PENDING)).watch(to)
    assert written(to).splitlines() == [
        "job job-1 (digits)",
        "pending: needs 5 workers; 2 are registered",
        "no answer from http://127.0.0.1:8470; waiting up to 90 s for the server to be back",
        "pending: needs 5 workers; 3 are registered",
        "running",
        "succeeded",
    ]


def test_a_job_that_recovers_says_what_it_waits_for() -> None:
    """Not the reason why it recovers once more."""
    lost = StateChanged(state=JobState.RECOVERING, reason="worker-0 was lost")
    waits = [job(state=JobState.RECOVERING, reason=reason) for reason in (lost.reason, "needs 2 workers; 1 is free")]
    events = [
        event(1, lost),
        *(event(seq, StateChanged(state=JobState(name))) for seq, name in ((2, "running"), (3, "succeeded"))),
    ]
    to = console(terminal=False)
    script = answers(stream(sse(events)), *waits, job(), job(state=JobState.SUCCEEDED))
    weft.JobHandle(script.client().http, job()).watch(to)
    assert written(to).splitlines()[1:] == [
        "recovering: worker-0 was lost",
        "recovering: needs 2 workers; 1 is free",
        "running",
        "succeeded",
    ]


def test_a_server_that_stays_away_while_a_job_waits_ends_the_watch() -> None:
    script = answers(unavailable)
    with pytest.raises(weft.ConnectError):
        weft.JobHandle(script.client().http, job(state=JobState.PENDING)).watch(console(terminal=False))


def test_a_server_that_is_away_for_long_is_told_once() -> None:
    events = states("running", "succeeded")
    script = answers(
        stream(sse(events[:1])), *[unavailable] * 9, stream(sse(events[1:])), job(state=JobState.SUCCEEDED)
    )
    to = console(terminal=False)
    weft.JobHandle(script.client().http, job()).watch(to)
    assert written(to).splitlines()[1:] == [
        "running",
        "no answer from http://127.0.0.1:8470; waiting up to 90 s for the server to be back",
        "the server answers again",
        "succeeded",
    ]


def test_what_a_job_died_of_is_said_by_the_error_alone() -> None:
    failed = event(1, StateChanged(state=JobState.FAILED, reason="worker 1 was lost"))
    to = console(terminal=False)
    watch([failed], job(), to)
    assert written(to).splitlines()[1:] == ["failed"]


@pytest.mark.parametrize("terminal", [True, False])
def test_ctrl_c_says_that_the_job_goes_on_and_leaves_a_short_trace(terminal: bool) -> None:
    def interrupted() -> Iterator[Event]:
        yield EVENTS[0]
        raise KeyboardInterrupt

    to = console(terminal=terminal)
    with pytest.raises(KeyboardInterrupt) as caught:
        watch(interrupted(), job(), to)
    assert re.search(r"job job-1 goes on; \S*weft watch job-1 shows it\n$", written(to))
    assert caught.value.__suppress_context__
    assert caught.traceback[-1].name == "watch"


LONG_RUN = [
    event(1, StateChanged(state=JobState.FINISHING)),
    event(2, MetricTaken(split="train", step=565, values={"loss": 0.3336, "accuracy": 0.9194}, samples=640)),
    event(3, StepDone(step=565, steps=1130, epoch=10, samples_per_second=12345)),
    event(4, MetricTaken(split="evaluate", step=565, values={"loss": 0.0895, "accuracy": 0.9778}, samples=360)),
    event(5, LogLine(level="info", source="server", message=(
        "runs on shard-0 (shard 0), shard-1 (shard 1), worker-0 (worker 0), worker-1 (worker 1); "
        "worker-0 (worker 0) saves the parameters"))),
    event(6, StateChanged(state=JobState.SUCCEEDED)),
]  # fmt: skip


def test_a_word_as_long_as_a_line_may_be_is_shown_at_once() -> None:
    to = console(terminal=False, width=80)
    words = [LogLine(level="info", source="worker-0", message="x" * (1 << 16)) for _ in range(20)]
    ended = StateChanged(state=JobState.SUCCEEDED)
    watch([event(number, body) for number, body in enumerate([*words, ended], 1)], job(), to)
    assert written(to).count("x" * 60) >= 20


def test_a_metric_that_some_steps_lack_has_no_mean() -> None:
    lacks = MetricTaken(split="train", step=2, values={"loss": 3.0}, samples=1)
    whole = MetricTaken(split="train", step=1, values={"loss": 1.0, "accuracy": 0.5}, samples=1)
    assert mean([whole, lacks]) == {"loss": 2.0}


def lines_of_the_screen(to: Console) -> list[str]:
    return [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]+", written(to))]


def test_80_columns_hold_each_line_with_its_numbers() -> None:
    to = console(terminal=True, width=80)
    watch(LONG_RUN, job(), to)
    lines = lines_of_the_screen(to)
    assert max(map(len, lines)) <= 80
    assert " 565/1130  train loss 0.3336 accuracy 0.9194  eval loss 0.0895 accuracy 0.9778" in lines
    assert "runs on shard-0, shard-1, worker-0, worker-1; worker-0 saves the parameters" in lines
    bars = [line for line in lines if "565/1130 epoch" in line]
    assert bars
    assert all("epoch 10  train loss 0.3336 accuracy 0.9194" in line and "0:00:00" in line for line in bars)


def test_a_wide_terminal_has_the_bar_and_the_rate_too() -> None:
    to = console(terminal=True, width=140)
    watch(LONG_RUN, job(), to)
    assert any("━" * 10 in line and "12,345 samples/s" in line for line in lines_of_the_screen(to))


def test_a_line_that_is_too_long_goes_on_set_in() -> None:
    to = console(terminal=True, width=30)
    watch([Notice("needs 5 workers; 2 are registered, 2 are free")], job(), to)
    assert {"needs 5 workers; 2 are ", "  registered, 2 are free"} <= set(lines_of_the_screen(to))
