"""A job's progress for people: a bar with the newest numbers on a terminal, lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from weft.api.event import Event, LogLine, MetricTaken, StateChanged, StepDone
from weft.api.job import Job

PLAIN_EVERY = timedelta(seconds=10)
"""Between two lines of progress where there is no terminal: enough to see that it lives, few enough for a log file."""

STYLES: Mapping[str, str] = {"warning": "yellow", "error": "red", "debug": "dim"}


@dataclass(slots=True)
class RunView:
    """What is known of a run from its events; `train` and `evaluate` are the newest metrics."""

    steps: int
    step: int = 0
    pass_number: int = 0
    samples_per_second: float = 0.0
    state: str = ""
    train: dict[str, float] = field(default_factory=dict)
    evaluate: dict[str, float] = field(default_factory=dict)
    _shown_at: datetime | None = None

    def take(self, event: Event) -> Text | None:
        """Takes an event in; gives the line that is worth keeping on the screen, if any."""
        body = event.body
        match body:
            case StateChanged():
                self.state = body.state.value
                return Text(f"{body.state.value}: {body.reason}" if body.reason else body.state.value, "bold")
            case StepDone():
                self.step, self.steps, self.pass_number = body.step, body.steps, body.pass_number
                self.samples_per_second = body.samples_per_second
                return None
            case MetricTaken(split="train"):
                self.train = dict(body.values)
                return None
            case MetricTaken():
                self.evaluate = dict(body.values)
                return Text(self._evaluated(body))
            case LogLine():
                return Text(f"{body.source}: {body.message}", STYLES.get(body.level, ""))

    def plain_progress(self, event: Event) -> str | None:
        """A line of progress, at most one in ten seconds of the job's time."""
        if not isinstance(event.body, StepDone):
            return None
        if self._shown_at is not None and event.at - self._shown_at < PLAIN_EVERY:
            return None
        self._shown_at = event.at
        return f"step {self.step}/{self.steps}  {self.summary()}"

    def summary(self) -> str:
        """Pass, rate and newest training metrics."""
        parts = [f"pass {self.pass_number}", f"{self.samples_per_second:,.0f} samples/s", shown(self.train)]
        return "  ".join(part for part in parts if part)

    def _evaluated(self, taken: MetricTaken) -> str:
        train = f"train {shown(self.train)}   " if self.train else ""
        return f"step {taken.step}/{self.steps}   {train}evaluate {shown(taken.values)}"


def shown(metrics: Mapping[str, float]) -> str:
    """`loss 0.0421  accuracy 0.9861`, the loss first."""
    names = sorted(metrics, key=lambda name: (name != "loss", name))
    return "  ".join(f"{name} {metrics[name]:.4f}" for name in names)


def watch(events: Iterable[Event], job: Job, console: Console | None = None) -> RunView:
    """Shows the events until they end, which is when the job ends."""
    console = console or Console()
    view = RunView(steps=job.progress.steps)
    if console.is_terminal:
        _watch_bar(events, view, console)
    else:
        _watch_lines(events, view, console)
    return view


def _watch_lines(events: Iterable[Event], view: RunView, console: Console) -> None:
    for event in events:
        kept = view.take(event)
        line = kept.plain if kept is not None else view.plain_progress(event)
        if line is not None:
            console.print(line, markup=False, highlight=False, soft_wrap=True)


def _watch_bar(events: Iterable[Event], view: RunView, console: Console) -> None:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[summary]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("waiting", total=view.steps, summary="")
        for event in events:
            kept = view.take(event)
            if kept is not None:
                progress.console.print(kept, highlight=False)
            _update(progress, task, view)


def _update(progress: Progress, task: TaskID, view: RunView) -> None:
    progress.update(
        task,
        description=view.state or "waiting",
        completed=view.step,
        total=view.steps,
        summary=view.summary() if view.step else "",
    )
