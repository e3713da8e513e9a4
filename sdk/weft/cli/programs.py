"""`weft programs`: what the converter makes of a job, of one that was submitted or of a job file."""

from __future__ import annotations

import re
from json import dumps
from pathlib import Path
from textwrap import wrap
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from weft.api.dry_run import DryRun, Passes, SnapshotCost, StepMemory
from weft.api.job import Recompute
from weft.cli import render
from weft.cli.job_file import job_file, read
from weft.cli.model_options import ModelOptions, check_unsaid
from weft.cli.models import is_model, job_of_model, trainable_of
from weft.cli.options import Form, Format, Grouped, Url, print_json, with_records
from weft.client import Client
from weft.command_line import command
from weft.errors import ArgumentError
from weft.terminal import Console

Target = Annotated[
    str,
    typer.Argument(
        metavar="ID|JOB.json|MODEL.onnx",
        help="A job's id, a job file, or an ONNX file.",
        show_default=False,
    ),
]
Detail = Annotated[
    str | None,
    typer.Argument(
        metavar="[full]", help="With --passes: list every node that was added or removed.", show_default=False
    ),
]
ShowPasses = Annotated[bool, typer.Option("--passes", help="Print what each pass of the converter changed.")]
Memory = Annotated[bool, typer.Option("--memory", help="Print only memory and bytes per step; for a job file.")]


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(cls=Grouped)(programs)


@with_records
def programs(
    job_or_file: Target,
    detail: Detail = None,
    *,
    passes: ShowPasses = False,
    memory: Memory = False,
    url: Url = None,
    form: Form = Format.TABLE,
    model: ModelOptions,
) -> None:
    """Print the programs that workers run for a job, a job file or an ONNX file. Nothing is submitted.

    An ONNX file needs --loss, and no server unless --data is given. First comes a summary of what is fetched, sent and
    held, then each node in the order of execution. `--passes` prints what each pass of the converter changed, and
    `--passes full` every node that it added or removed.
    """
    out, file, told = Console(), job_file(job_or_file), _passes(detail, passes, memory, form)
    if file is not None and is_model(file) and model.data is None:
        _print(out, _local(file, model, told, memory, form), job_or_file, fit=form is Format.TABLE)
        return
    made = None if file is None else _job(file, model)
    if made is None:
        check_unsaid(model, job_or_file)
    with Client(url) as client:
        if told is not None:
            text = client.job(job_or_file).passes_text(told) if made is None else _dry_passes(client, made, told)
        elif made is not None:
            run = client.dry_run(made)
            if memory:
                tell_dry_run(out, run, form)
                return
            text = dumps(run.programs, indent=2) if form is Format.JSON else run.text
        elif memory:
            raise ArgumentError("--memory is for job files, before they are submitted: weft programs JOB.json --memory")
        else:
            job = client.job(job_or_file)
            text = dumps(job.programs(), indent=2) if form is Format.JSON else job.programs_text()
    _print(out, text, job_or_file, fit=form is Format.TABLE)


def _passes(detail: str | None, passes: bool, memory: bool, form: Format) -> Passes | None:
    """Which text of the passes is asked for. Raises ArgumentError for what makes no sense together."""
    if detail is not None and (not passes or detail != "full"):
        raise ArgumentError(
            f"--passes takes no value or full, not {detail!r}: weft programs JOB --passes full prints every node"
        )
    if passes and (memory or form is Format.JSON):
        raise ArgumentError(
            f"--passes prints a text of its own, and goes without {'--memory' if memory else '-o json'}"
        )
    if not passes:
        return None
    return Passes.SHORT if detail is None else Passes.FULL


def _local(file: Path, model: ModelOptions, told: Passes | None, memory: bool, form: Format) -> str:
    """The text of an ONNX file that is said no data: no server is asked. Raises ArgumentError for its memory."""
    from weft.cli.local_programs import local_json, local_passes, local_text  # most commands convert nothing

    if memory:
        raise ArgumentError(f"--memory goes by the data: say what {file} trains on, --data FILE.npz, and --batch-size")
    trainable = trainable_of(file, model)
    if told is not None:
        return local_passes(trainable, told, model.batch_size)
    return dumps(local_json(trainable), indent=2) if form is Format.JSON else local_text(trainable)


def _dry_passes(client: Client, job: bytes | str, told: Passes) -> str:
    return client.dry_run(job, passes=told).passes


def _job(file: Path, model: ModelOptions) -> bytes | str:
    """The job in the file, or the one that the options make of an ONNX file: for a step, as it is not run."""
    if is_model(file):
        return job_of_model(file, model, steps=1).document
    check_unsaid(model, str(file))
    return read(file)


def tell_dry_run(out: Console, run: DryRun, form: Format) -> None:
    """What a checked job would be: its size, what it would take, and whether it would start."""
    if form is Format.JSON:
        print_json(run.model_dump(mode="json", exclude={"programs", "text", "passes"}))
    else:
        out.print(dry_run_table(run))


def dry_run_table(run: DryRun) -> Table:
    """A line for each thing that is known of the job before it runs."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="dim")
    made.add_column(overflow="fold")
    on = render.places(run.workers, run.shards)
    made.add_row("name", Text(run.name))
    made.add_row("on", f"{on}; {run.waits_for or 'it would start at once'}")
    made.add_row("steps", f"{run.steps:,}, {run.steps_per_epoch:,} per epoch")
    tables = sum(key.rows for key in run.keys)
    by_rows = f", {render.counted(tables, 'table')} by rows" if tables else ""
    made.add_row("keys", f"{len(run.keys)} in {render.counted(run.slices, 'slice')}{by_rows}")
    made.add_row("a worker", _worker(run))
    if run.worker_memory.train is not None:
        made.add_row("peak memory", _peak(run.worker_memory.train))
    for choice, step in run.worker_memory.recompute.items():
        made.add_row(f"recompute {choice}", _recomputed(step, run.worker_memory.recompute[Recompute.OFF]))
    made.add_row("all shards" if run.shards else "the values", _store(run))
    if run.beginning is not None:
        made.add_row("beginning", Text(run.beginning))
    if run.snapshot is not None:
        made.add_row("a snapshot", Text(_snapshot(run.snapshot)))
    made.add_row("each step", _traffic(run) if run.shards else "nothing travels: the worker keeps the values")
    return made


def _worker(run: DryRun) -> str:
    memory = run.worker_memory
    parts = [
        f"parameters {render.size(memory.parameter_bytes)}",
        f"training step {render.size(memory.train_peak_bytes)}",
    ]
    if memory.state_bytes:
        parts.insert(1, f"state {render.size(memory.state_bytes)}")
    if memory.evaluate_peak_bytes is not None:
        parts.append(f"evaluation batch {render.size(memory.evaluate_peak_bytes)}")
    return ", ".join(parts)


def _peak(step: StepMemory) -> str:
    """Of a training step's values: all, the most at one time, and what is laid out for them."""
    text = (
        f"{render.size(step.arena_bytes + step.kept_bytes)} of {render.size(step.intermediate_bytes)} intermediates: "
        f"arena {render.size(step.arena_bytes)}, largest live set {render.size(step.live_bytes)}, "
        f"sent {render.size(step.kept_bytes)}"
    )
    return (
        f"{text}; and {render.counted(step.unknown, 'value')} of a size that the data decides" if step.unknown else text
    )


def _recomputed(step: StepMemory, without: StepMemory) -> str:
    held, more = step.arena_bytes + step.kept_bytes, step.operations / max(without.operations, 1) - 1
    less = 1 - held / max(without.arena_bytes + without.kept_bytes, 1)
    text = f"{render.size(held)}, {step.operations / 1e6:,.1f} M operations a step"
    return text if step is without else f"{text}: {less:.0%} less memory, {more:.1%} more operations"


def _store(run: DryRun) -> str:
    memory = run.store_memory
    text = f"parameters {render.size(memory.parameter_bytes)}, state {render.size(memory.state_bytes)}"
    if memory.previous_bytes:
        text += f", parameters before the last step {render.size(memory.previous_bytes)}"
    if memory.table_bytes:
        most, state = render.size(memory.table_bytes), render.size(memory.table_state_bytes)
        text += f", tables {most} and state {state} if every row is touched"
    return f"{text}; the largest shard at most {render.size(memory.largest_shard_bytes)}" if run.shards else text


def _snapshot(cost: SnapshotCost) -> str:
    if cost.lacking is not None:
        return f"there is none: {cost.lacking}"
    files = render.counted(cost.files, "file")
    return f"{render.size(cost.nbytes)} in {files}, each {cost.every_s:g} s, below {cost.location}"


def _traffic(run: DryRun) -> str:
    traffic = run.step_traffic
    fetched, sent = render.size(traffic.fetched_bytes), render.size(traffic.sent_bytes)
    text = f"fetched {fetched}, sent {sent}"
    if traffic.fetched_row_bytes or traffic.sent_row_bytes:
        fetched, sent = render.size(traffic.fetched_row_bytes), render.size(traffic.sent_row_bytes)
        text += f"; in rows at most {fetched} and {sent}"
    return text


def _print(out: Console, text: str, target: str, *, fit: bool) -> None:
    fit = fit and out.is_terminal and any(len(line) > out.width for line in text.splitlines())
    whole = text.rstrip("\n")
    # As it is: rich would fold long lines and colour numbers.
    out.write(f"{narrow(whole, out.width) if fit else whole}\n")
    if fit:
        Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(
            f"narrowed to this terminal; whole: {command(f'programs {target}')} | less -S"
        )


def narrow(text: str, width: int) -> str:
    """The text in lines of at most `width` characters: a longer one goes on below, set in.

    A table's line is cut instead, and ends with an ellipsis: folded cells read as cells of other columns.
    """
    lines: list[str] = []
    is_table = False
    for line in text.splitlines():
        is_table = line.lstrip().startswith("priority  ") or (is_table and bool(line.strip()))
        if len(line) <= width:
            lines.append(line)
        elif is_table:
            lines.append(f"{line[: width - 1]}…")
        else:
            lines += _folded(line, width)
    return "\n".join(lines)


def _folded(line: str, width: int) -> list[str]:
    """The line on as many as it takes, each but the first set in by four more; columns move together."""
    start = len(line) - len(line.lstrip())
    words = re.sub(r" {2,}", "  ", line.strip())
    indent = " " * min(start + 4, width // 2)
    return wrap(f"{' ' * start}{words}", width, subsequent_indent=indent, break_on_hyphens=False)
