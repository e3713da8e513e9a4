"""A job's progress for people: a bar with the newest numbers on a terminal, lines elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.progress_bar import ProgressBar
from rich.text import Text

from weft import terminal
from weft.api.event import Event, LogLine, MetricTaken, StateChanged, StepDone
from weft.api.job import Job
from weft.api.lifecycle import JobState
from weft.command_line import command
from weft.event_stream import Notice

TAIL = 20
"""Events so far with which a job is watched that runs already: the newest numbers, and a line or two."""

PLAIN_EVERY = timedelta(seconds=10)
"""Between two lines of progress where there is no terminal: enough to see that it lives, few enough for a log file."""

WIDEST_STATE = max(len(state.value) for state in JobState)
WIDEST_ELAPSED = len("12:34:56")
BAR_WIDTHS = (10, 40)
"""The least and the most cells of a bar; where fewer are left over, there is none."""

SAME_NUMBER = re.compile(r"-(\d+) \((?:worker|shard) \1\)")
"""An agent beside what it is in the job, of the same number, as in `worker-1 (worker 1)`."""

SAVES = "the result is being saved"
"""Of a job that has trained, where no reason says more."""

STYLES: Mapping[str, str] = {"warning": "yellow", "error": "red", "debug": "dim"}


@dataclass(slots=True)
class RunView:
    """What is known of a run from its events; `train` and `evaluate` are the newest metrics.

    `since` are the training's metrics since the last evaluation, which its line has the mean of, unless some of them
    came before this view, or of a run that was lost.
    """

    steps: int
    step: int = 0
    epoch: int = 0
    samples_per_second: float = 0.0
    state: str = ""
    train: dict[str, float] = field(default_factory=dict)
    evaluate: dict[str, float] = field(default_factory=dict)
    since: list[MetricTaken] = field(default_factory=list)
    since_is_whole: bool | None = None
    _trained_at: int = 0
    """The step of `train`."""
    _shown_at: datetime | None = None
    _noticed: str = ""

    def take(self, event: Event | Notice) -> Text | None:
        """Takes an event in; gives the line that is worth keeping on the screen, if any."""
        if isinstance(event, Notice):
            self._noticed = event.text
            return Text(event.text, "yellow")
        if self.since_is_whole is None:
            self.since_is_whole = event.seq == 1
        body = event.body
        match body:
            case StateChanged():
                return self._changed(body)
            case StepDone():
                if body.step < min(self.step, self._trained_at):  # They are of a run that was lost, or of later steps.
                    self.train, self.since_is_whole = {}, self.since_is_whole and not self.since
                    self.since.clear()
                self.step, self.steps, self.epoch = body.step, body.steps, body.epoch
                self.samples_per_second = body.samples_per_second
                return None
            case MetricTaken(split="train"):
                self.train, self._trained_at = dict(body.values), body.step
                self.since.append(body)
                return None
            case MetricTaken():
                self.evaluate = dict(body.values)
                return Text(self._evaluated(body))
            case LogLine():
                return Text(_log_line(body), STYLES.get(body.level, ""))

    def plain_progress(self, event: Event | Notice) -> str | None:
        """A line of progress, at most one in ten seconds of the job's time."""
        if isinstance(event, Notice) or not isinstance(event.body, StepDone):
            return None
        if self._shown_at is not None and event.at - self._shown_at < PLAIN_EVERY:
            return None
        self._shown_at = event.at
        return f"step {self.step}/{self.steps}  {self.summary()}"

    def summary(self, room: int | None = None) -> str:
        """Pass, rate and newest training metrics; within `room` cells the rate goes first, then the pass."""
        numbers = f"train {shown(self.train, gap=' ')}" if self.train else ""
        epoch, rate = f"epoch {self.epoch}", f"{self.samples_per_second:,.0f} samples/s"
        forms = ("  ".join(filter(None, parts)) for parts in ((epoch, rate, numbers), (epoch, numbers)))
        return next((form for form in forms if room is None or len(form) <= room), numbers or epoch)

    def steps_done(self, step: int) -> str:
        """` 565/1130`, as wide at each step."""
        return f"{step:>{len(str(self.steps))}}/{self.steps}"

    def _changed(self, change: StateChanged) -> Text | None:
        """A state's line. That a job is pending was said with its reason; what it died of is said by who raises it."""
        self.state = change.state.value
        why = change.reason or (SAVES if change.state is JobState.FINISHING else "")
        line = f"{self.state}: {why}" if why else self.state
        if change.state is JobState.PENDING and (not change.reason or line == self._noticed):
            return None
        told = Text(self.state if change.state.is_terminal else line, "bold")
        if self.since and (change.state.is_terminal or change.state is JobState.FINISHING):
            last = self.since.pop()  # no evaluation follows whose line would have it
            self.since.clear()
            return Text(f"{self.steps_done(last.step)}  train {shown(last.values, gap=' ')}\n").append_text(told)
        return told

    def _evaluated(self, taken: MetricTaken) -> str:
        """One line of 80 cells where there are two metrics: the training's since the last one, and the evaluation's."""
        train = f"train {shown(mean(self.since), gap=' ')}  " if self.since and self.since_is_whole else ""
        self.since, self.since_is_whole = [], True
        return f"{self.steps_done(taken.step)}  {train}eval {shown(taken.values, gap=' ')}"


def mean(taken: Sequence[MetricTaken]) -> dict[str, float]:
    """The mean over all samples of what was taken of some each."""
    samples = sum(each.samples for each in taken)
    return {
        name: sum(each.values[name] * each.samples for each in taken) / samples
        for name in taken[0].values
        if all(name in each.values for each in taken)
    }


def shown(metrics: Mapping[str, float], *, gap: str = "  ") -> str:
    """`loss 0.0421  accuracy 0.9861`, the loss first."""
    names = sorted(metrics, key=lambda name: (name != "loss", name))
    return gap.join(f"{name} {metrics[name]:.4f}" for name in names)


def watch(events: Iterable[Event | Notice], job: Job, console: Console | None = None) -> RunView:
    """Shows the events until they end, which is when the job ends. After a Ctrl-C it says that the job goes on."""
    console = console or terminal.Console()
    view = RunView(steps=job.progress.steps)
    runs = job.progress.step and job.state is not JobState.PENDING and not job.state.is_terminal
    so_far = f": {job.state.value}, step {job.progress.step}/{job.progress.steps}" if runs else ""
    console.print(f"job {job.id} ({job.name}){so_far}", markup=False, highlight=False, soft_wrap=True)
    try:
        told = _with_count(events, job.id)
        if console.is_terminal:
            _watch_bar(told, view, console)
        else:
            _watch_lines(told, view, console)
    except KeyboardInterrupt:
        console.print(
            f"job {job.id} goes on; {command(f'watch {job.id}')} shows it",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        raise KeyboardInterrupt from None  # without the frames of whatever was waited for
    return view


def _with_count(events: Iterable[Event | Notice], job: str) -> Iterator[Event | Notice]:
    """The events; before the first of them how many came earlier."""
    is_first = True
    for event in events:
        if is_first and isinstance(event, Event):
            is_first, earlier = False, event.seq - 1
            if earlier:
                are = "event is" if earlier == 1 else "events are"
                yield Notice(f"{earlier} earlier {are} left out; {command(f'logs {job} --all')} prints all")
        yield event


def _log_line(line: LogLine) -> str:
    """The server speaks of the job as this display does, so its name is not in front."""
    message = SAME_NUMBER.sub(r"-\1", line.message)
    return message if line.source == "server" and line.level == "info" else f"{line.source}: {message}"


def _watch_lines(events: Iterable[Event | Notice], view: RunView, console: Console) -> None:
    for event in events:
        kept = view.take(event)
        line = kept.plain if kept is not None else view.plain_progress(event)
        if line is not None:
            console.print(line, markup=False, highlight=False, soft_wrap=True)


class _Bar(ProgressColumn):
    """A bar of as many cells as the task's field `bar` says."""

    def render(self, task: Task) -> ProgressBar | Text:
        cells = task.fields["bar"]
        return ProgressBar(total=task.total, completed=task.completed, width=cells) if cells else Text()


def _watch_bar(events: Iterable[Event | Notice], view: RunView, console: Console) -> None:
    columns = (
        TextColumn("{task.description}"),
        _Bar(),
        TextColumn("{task.fields[steps]}"),
        TextColumn("{task.fields[summary]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("waiting", total=view.steps, bar=0, steps="", summary="")
        for event in events:
            kept = view.take(event)
            if kept is not None:
                progress.console.print(_folded(kept, console), highlight=False)
            _update(progress, task, view)


def _update(progress: Progress, task: TaskID, view: RunView) -> None:
    """The numbers come first; the bar has what they leave."""
    steps = view.steps_done(view.step)
    room = progress.console.width - WIDEST_STATE - len(steps) - WIDEST_ELAPSED - 4  # 4 gaps between 5 columns
    summary = view.summary(room) if view.step else ""
    least, most = BAR_WIDTHS
    left = min(most, room - len(summary))
    progress.update(
        task,
        description=view.state or "waiting",
        completed=view.step,
        total=view.steps,
        bar=left if left >= least else 0,
        steps=steps,
        summary=summary,
    )


def _folded(line: Text, console: Console) -> Text:
    """The line, or where it is too long several, of which all but the first are set in."""
    if line.cell_len <= console.width:
        return line
    return Text("\n  ").join(line.wrap(console, max(console.width - 2, 1)))
