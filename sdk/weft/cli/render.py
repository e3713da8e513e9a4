"""Jobs, agents and events as people read them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from weft.agent.printable import escaped
from weft.api.agent import AgentInfo
from weft.api.event import Event, LogLine, MetricTaken, StateChanged, StepDone
from weft.api.job import Job, JobSpec, ParameterInfo
from weft.api.lifecycle import AgentState, JobState
from weft.api.optimizer import GraphOptimizer
from weft.api.token import DEFAULT_PROJECT
from weft.terminal import Console
from weft.watch import STYLES, shown

STATE_STYLES = {
    JobState.PENDING: "yellow",
    JobState.STARTING: "cyan",
    JobState.RUNNING: "cyan",
    JobState.FINISHING: "cyan",
    JobState.RECOVERING: "yellow",
    JobState.STOPPING: "yellow",
    JobState.SCALING: "yellow",
    JobState.SUCCEEDED: "green",
    JobState.FAILED: "red",
    JobState.CANCELLED: "magenta",
}


GAP = 2
"""Cells between two columns."""
SHORTEST_NAME = 8
SHORT_ID = 8
WIDEST = 1000
"""Cells of a line that nobody's terminal bounds."""


def table(*headings: str) -> Table:
    """An empty table without lines. Nothing in it is folded, so that ids can be copied: see `print_table`."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for heading in headings:
        made.add_column(heading, no_wrap=True)
    return made


def print_table(made: Table) -> None:
    """Prints it as wide as it is; a terminal that is narrower breaks its lines, which then still are one."""
    Console(width=WIDEST).print(made)


def room() -> int:
    """Cells of a line on this terminal; plenty where none reads."""
    console = Console()
    return console.width if console.is_terminal else WIDEST


def jobs_table(jobs: Sequence[Job], now: datetime, width: int) -> Table:
    """A line of `width` cells for each job: metrics that have no room are left out, long names cut."""
    sizes = ("size",) if any(job.kept_bytes for job in jobs) else ()
    headings = ("id", "name", "state", "step", "age", *sizes, "metrics")
    rows = [
        [job.id, job.name, job.state.value, steps(job), ago(now - job.created_at), *(short_size(job) for _ in sizes)]
        for job in jobs
    ]
    widths = [max(map(len, column)) for column in zip(headings[:-1], *rows, strict=True)]
    left = width - sum(widths) - GAP * len(widths)  # what the metrics have
    name = max(SHORTEST_NAME, widths[1] + min(left - len(headings[-1]), 0))
    made = table(*headings)
    for job, (id_, _, _, *rest) in zip(jobs, rows, strict=True):
        made.add_row(id_, Text(cut(job.name, name)), state_text(job.state), *rest, metrics_line(job, max(left, 0)))
    return made


def job_lines(job: Job, spec: JobSpec, now: datetime) -> Table:
    """All there is to say of one job."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="dim")
    made.add_column(overflow="fold")
    made.add_row("id", job.id)
    made.add_row("name", Text(job.name))
    if job.project != DEFAULT_PROJECT:
        made.add_row("project", job.project)
    made.add_row("state", state_text(job.state))
    if job.reason:
        made.add_row("reason", Text(escaped(job.reason)))  # before its width is taken
    if job.beginning is not None:
        made.add_row("beginning", Text(escaped(job.beginning)))
    recovered = f"; recovered {job.restarts} of at most {spec.max_restarts} times" if job.restarts else ""
    made.add_row("step", f"{steps(job)}, epoch {job.progress.epoch}{recovered}")
    if job.snapshot is not None:
        # A resumed job has none of its own at first: the snapshot that it goes on from counts for the job before.
        made.add_row("snapshot", f"step {job.snapshot}{f', {size(job.snapshot_bytes)}' if job.snapshot_bytes else ''}")
    if job.kept_bytes:
        made.add_row("on disk", size(job.kept_bytes))
    for name in sorted(job.metrics):
        made.add_row(name, f"{job.metrics[name]:.6g}")
    for label, text in _training(spec):
        made.add_row(label, Text(escaped(text)))
    made.add_row("on", places(job.workers, job.shards))
    if devices := [device for device in dict.fromkeys(job.devices) if device]:
        made.add_row("device", Text(escaped(", ".join(devices))))
    traffic, done = job.traffic, job.progress.step
    if traffic.sent_bytes or traffic.received_bytes:
        total = traffic.sent_bytes + traffic.received_bytes
        # A resumed job counts the steps of the one before, whose bytes are not its own.
        each = f", {size(total / done)} a step" if done and (spec is None or spec.resume is None) else ""
        made.add_row("traffic", f"{size(traffic.sent_bytes)} sent, {size(traffic.received_bytes)} received{each}")
    for label, at in (("created", job.created_at), ("started", job.started_at), ("ended", job.ended_at)):
        if at is not None:
            made.add_row(label, f"{at.astimezone():%Y-%m-%d %H:%M:%S} ({ago(now - at)} ago)")
    if job.started_at is not None:
        made.add_row("took" if job.ended_at else "so far", ago((job.ended_at or now) - job.started_at))
    return made


def _training(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """What trains how on what."""
    optimizer = spec.optimizer
    if isinstance(optimizer, GraphOptimizer):
        name, hyper = str(optimizer.document.get("name", optimizer.name)), optimizer.values()
    else:
        usual, name = type(optimizer)().numbers(), optimizer.name
        hyper = {key: value for key, value in optimizer.numbers().items() if key == "lr" or value != usual[key]}
    lr = hyper.pop("lr", None)
    yield "optimizer", ", ".join([name, *(f"{key} {_hyper(value)}" for key, value in hyper.items())])
    if lr is not None:
        yield "lr", _hyper(lr)
    data = spec.data
    yield "batch size", str(data.batch_size)
    rows = f", rows {data.train.start} to {data.train.stop}" if data.train else ""
    held_out = f"; evaluated on rows {data.evaluate.start} to {data.evaluate.stop}" if data.evaluate else ""
    yield "data", f"{data.source.path}{rows}{held_out}"


def _hyper(value: Any) -> str:
    """`0.001`; a pair as `(0.9, 0.999)`; a schedule as `cosine, start 0.1, end 0, steps 1000`."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_hyper, value))})"
    if not isinstance(value, dict):
        return f"{value:g}"
    return ", ".join(f"{key} {_part(each)}" for key, each in value.items()).removeprefix("schedule ")


def _part(value: Any) -> str:
    """A field of a schedule; the fields of its warm-up and its boundaries in brackets."""
    if isinstance(value, list):
        return ", ".join(map(_part, value))
    if isinstance(value, dict):
        return f"({', '.join(f'{key} {_part(each)}' for key, each in value.items())})"
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def agents_table(agents: Sequence[AgentInfo], width: int) -> Table:
    """A line for each worker and shard; jobs by the beginning of their ids where `width` cells hold no more."""
    made = _agents_table(agents, short=False)
    return made if Console(width=WIDEST).measure(made).maximum <= width else _agents_table(agents, short=True)


def _agents_table(agents: Sequence[AgentInfo], *, short: bool) -> Table:
    devices = ("device",) if any(agent.device for agent in agents) else ()
    made = table("name", "kind", "state", *devices, "jobs", "heard", "pid")
    for agent in agents:
        style = {AgentState.ALIVE: "green", AgentState.SUSPECTED: "yellow"}.get(agent.state, "red")
        made.add_row(
            agent.name,
            agent.kind.value,
            Text(agent.state.value, style),
            *(Text(escaped((agent.device.split(" ")[0] if short else agent.device) or "-")) for _ in devices),
            _first_of(agent.jobs) if short else ", ".join(agent.jobs) or "-",
            f"{ago(timedelta(seconds=agent.silent_s))} ago",
            str(agent.pid),
        )
    return made


def parameters_table(parameters: Sequence[ParameterInfo]) -> Table:
    """A line for each parameter."""
    made = table("name", "dtype", "shape", "trained")
    for parameter in parameters:
        shape = " x ".join(map(str, parameter.shape)) or "scalar"
        made.add_row(Text(escaped(parameter.name)), parameter.dtype, shape, "yes" if parameter.trainable else "no")
    return made


def event_line(event: Event) -> Text:
    """One event: local time, who, what. Further lines of a text are indented, so that none looks like an event."""
    at = f"{event.at.astimezone():%H:%M:%S}  "
    match event.body:
        case StateChanged() as changed:
            line = state_text(changed.state)
            return Text(at).append_text(line).append(f": {_indented(changed.reason)}" if changed.reason else "")
        case StepDone() as done:
            rate = f"{done.samples_per_second:,.0f} samples/s"
            return Text(f"{at}step {done.step}/{done.steps}  epoch {done.epoch}  {rate}", "dim")
        case MetricTaken() as taken:
            return Text(f"{at}{taken.split} at step {taken.step}: {shown(taken.values)}  ({taken.samples} samples)")
        case LogLine() as line_:
            return Text(f"{at}{line_.source}: {_indented(line_.message)}", STYLES.get(line_.level, ""))


def _indented(text: str) -> str:
    return text.replace("\n", "\n" + " " * len("12:34:56  "))


def state_text(state: JobState) -> Text:
    return Text(state.value, STATE_STYLES[state])


def steps(job: Job) -> str:
    return f"{job.progress.step}/{job.progress.steps}"


def metrics_line(job: Job, width: int) -> str:
    """The evaluation's metrics where there are any, else those of training; it says which. As many as have room."""
    for split, prefix in (("eval", "evaluate/"), ("train", "train/")):
        found = {name.removeprefix(prefix): value for name, value in job.metrics.items() if name.startswith(prefix)}
        if found:
            return cut(f"{split} {shown(found)}", width, at="  ")
    return "-"


def cut(text: str, width: int, at: str = "") -> str:
    """The text if it has room, else its beginning and an ellipsis: as many of its parts as fit, which `at` divides."""
    if len(text) <= width:
        return text
    parts = text.split(at) if at else [text]
    for count in range(len(parts) - 1, 0, -1):
        begun = f"{at.join(parts[:count])} …"
        if len(begun) <= width:
            return begun
    return f"{text[: max(width - 1, 0)]}…"


def _first_of(jobs: Sequence[str]) -> str:
    """`8f41c2aa +2`: the beginning of an id is enough for the commands."""
    if not jobs:
        return "-"
    return jobs[0][:SHORT_ID] + (f" +{len(jobs) - 1}" if len(jobs) > 1 else "")


def state_line(job: Job) -> str:
    """`job 8f41 (digits) is pending: needs 5 workers`."""
    return f"job {job.id} ({job.name}) {job.state.told}{f': {job.reason}' if job.reason else ''}"


def agent_order(agent: AgentInfo) -> tuple[str, list[tuple[int, str]]]:
    """By kind, then by name, of which the numbers count as numbers."""
    return agent.kind.value, [
        (int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", agent.name)
    ]


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def places(workers: int, shards: int) -> str:
    """`2 workers, 1 shard`; one worker that keeps the values itself has no shard."""
    return f"{counted(workers, 'worker')}, {counted(shards, 'shard')}" if shards else counted(workers, "worker")


def size(count: float) -> str:
    """Bytes in the largest unit of which there is one: `640 B`, `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def short_size(job: Job) -> str:
    """What the job takes, as narrow as may be: `1.5M`; `-` for nothing."""
    number, _, unit = size(job.kept_bytes).partition(" ")
    return f"{number}{unit[:1] if unit != 'B' else ''}" if job.kept_bytes else "-"


def ago(duration: timedelta) -> str:
    """A duration in its two largest units, to the second."""
    seconds = max(0, int(duration.total_seconds()))
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours}h"
    if hours:
        return f"{hours}h {minutes}m"
    return f"{minutes}m {seconds}s" if minutes else f"{seconds}s"


def now() -> datetime:
    return datetime.now(UTC)
