"""Commands about jobs: submit, resume, jobs, show, watch, wait, logs, stop, scale, cancel, rm; and agents."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from enum import StrEnum
from itertools import islice
from typing import Annotated

import typer

from weft.api.agent import AgentList
from weft.api.job import Job, JobPage, JobSpec
from weft.api.lifecycle import JobState
from weft.api.optimizer import GraphOptimizer
from weft.cli import render
from weft.cli.job_file import InitFrom, SetOption, beginning_with, job_file, overridden, read
from weft.cli.model_options import JOB_PANEL, ModelOptions, fields_of_a_job
from weft.cli.models import ModelJob, is_model, job_of_model, submit_model, with_hints
from weft.cli.options import Form, Format, Grouped, JobId, Url, await_job, print_json, say, warn, with_records
from weft.cli.programs import tell_dry_run
from weft.cli.training_options import TrainingOptions, changed
from weft.client import Client
from weft.command_line import command
from weft.errors import ArgumentError, JobError, WeftError
from weft.event_stream import Notice
from weft.job_handle import JobHandle
from weft.terminal import Console

Submitted = Annotated[
    str,
    typer.Argument(
        metavar="JOB.json|MODEL.onnx|ID",
        help="A job file (- reads standard input), an ONNX file, or the id of an earlier job.",
        show_default=False,
    ),
]
States = Annotated[list[JobState] | None, typer.Option("--state", help="Only jobs in this state; may be repeated.")]

LOG_TAIL = 50
"""Events that `weft logs` prints where nothing else is said."""


def add_to(app: typer.Typer) -> None:
    """Adds the commands."""
    for each in (submit, resume, jobs, show, watch, wait, logs, stop, scale, cancel, rm, agents):
        app.command(cls=Grouped)(each)


@with_records
def submit(
    job_or_file: Submitted,
    *,
    set_: SetOption = None,
    steps: Annotated[
        int | None, typer.Option("--steps", help="Steps to train.", show_default=False, rich_help_panel=JOB_PANEL)
    ] = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", help="Epochs to train.", show_default=False, rich_help_panel=JOB_PANEL)
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show progress until the job ends.")] = False,
    init_from: InitFrom = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Validate the job and print what it needs; start nothing.")
    ] = False,
    url: Url = None,
    form: Form = Format.TABLE,
    training: TrainingOptions,
    model: ModelOptions,
) -> None:
    """Submit a job.

    From a job file, JSON as `weft.job_spec` writes it; from an ONNX file, with at least --loss, --data and --epochs; or
    from an earlier job, by its id, to run it once more.
    """
    out, file = Console(soft_wrap=True, highlight=False, markup=False), job_file(job_or_file)
    if file is not None and is_model(file):
        made: ModelJob | None = job_of_model(file, model, steps=steps, epochs=epochs)
        said = []
    else:
        said = fields_of_a_job(model, job_or_file, steps=steps, epochs=epochs)
        made = None if file is None else ModelJob(read(file))
    changes = training.fields()
    with Client(url) as client:
        if made is None:
            made = ModelJob(client.job(job_or_file).spec_json())
        made = replace(made, document=overridden(changed(made.document, changes), [*said, *(set_ or ())]))
        if init_from is not None:
            made = ModelJob(beginning_with(client, made.document, init_from))
        with with_hints("--column " if file is not None and is_model(file) else "--set data.columns."):
            if dry_run:
                run = client.dry_run(made.document)
                if run.lacking is not None and not made.values:
                    raise WeftError(run.lacking)
                tell_dry_run(out, run, form)
                return
            job = submit_model(client, made)
        _tell_submitted(job, form=form, watch=watch)


def resume(
    id: JobId,  # noqa: A002 - the argument's name to users
    *,
    steps: Annotated[
        int | None, typer.Option("--steps", help="Total steps, those of the first job included.", show_default=False)
    ] = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", help="Total epochs, those of the first job included.", show_default=False)
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="Number of workers.", show_default=False)] = None,
    shards: Annotated[int | None, typer.Option("--shards", help="Number of shards.", show_default=False)] = None,
    lr: Annotated[float | None, typer.Option("--lr", help="The learning rate from now on.", show_default=False)] = None,
    stop_when: Annotated[
        str | None,
        typer.Option("--stop-when", help="End early, as for `submit`; 'none' removes it."),
    ] = None,
    set_: SetOption = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show progress until the job ends.")] = False,
    url: Url = None,
    form: Form = Format.TABLE,
) -> None:
    """Continue a job that has ended from its last snapshot: same parameters, optimizer, step and data order."""
    with Client(url) as client:
        document = client.resume_spec(
            client.job(id),
            steps=steps,
            epochs=epochs,
            workers=workers,
            shards=shards,
            lr=lr,
            stop_when=stop_when,
        )
        job = client.submit_spec(overridden(document, set_ or ()))
        _tell_submitted(job, form=form, watch=watch)


def jobs(
    state: States = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Most jobs to list.")] = 20,
    url: Url = None,
    form: Form = Format.TABLE,
) -> None:
    """List jobs, newest first."""
    with Client(url) as client:
        found = [handle.job for handle in islice(client.jobs(state=state), limit)]
    if form is Format.JSON:
        print_json(JobPage(jobs=found))
    elif found:
        render.print_table(render.jobs_table(found, render.now(), render.room()))
        for job in found:
            if job.state.is_waiting and job.reason:
                Console(soft_wrap=True, highlight=False, markup=False).print(render.state_line(job))
    elif state:
        say(f"no job is in that state; `{command('jobs')}` lists all")
    else:
        say(f"no jobs yet; submit one with: {command('submit JOB.json')}")


def show(
    id: JobId,  # noqa: A002 - the argument's name to users
    spec: Annotated[bool, typer.Option("--spec", help="Print the submitted job, as `weft submit` takes it.")] = False,
    url: Url = None,
    form: Form = Format.TABLE,
) -> None:
    """Show one job: its state, progress and metrics, and what it trains on."""
    with Client(url) as client:
        found = client.job(id)
        job = found.job
        if spec:
            Console().out(found.spec_json(), highlight=False)
            return
        if form is Format.JSON:
            print_json(job)
            return
        submitted = found.spec()
    Console().print(render.job_lines(job, submitted, render.now()))
    if job.state is JobState.FAILED and job.started_at is not None:
        say(f"\nwhat led to it: {command(f'logs {job.id}')}")
    if job.state is JobState.SUCCEEDED and job.snapshot and job.progress.step < job.progress.steps:
        early = "" if submitted.stop_when is None else " --stop-when none"
        say(f"go on from step {job.snapshot}: {command(f'resume {job.id}{early}')}")
    elif job.state is JobState.SUCCEEDED and job.snapshot == job.progress.step:
        epochs = submitted.run.epochs
        longer = f"--epochs {2 * epochs}" if epochs else f"--steps {2 * job.progress.step}"
        spent = _lr_at(submitted, job.progress.step) == 0
        also, ended = (" --lr LR", ", its schedule has ended") if spent else ("", "")
        say(f"train it longer{ended}: {command(f'resume {job.id} {longer}{also}')}")
    elif job.state.is_terminal and job.snapshot is not None:
        say(f"go on from step {job.snapshot}: {command(f'resume {job.id}')}")
    elif job.state is JobState.FAILED and job.started_at is not None:
        say(f"run it again: {command(f'submit {job.id}')}; --set lr=0.001 changes a field of it")
    if job.state is JobState.SUCCEEDED:
        say(f"\nsave its parameters with: {command(f'params save {job.id} FILE.safetensors')}")


def _lr_at(spec: JobSpec, step: int) -> float | None:
    """The learning rate that the step after `step` would have; None where the optimizer has none of that name."""
    from weft_graph.rules.schedule import value_at  # who shows no job that has ended needs no graph

    optimizer = spec.optimizer
    numbers = optimizer.values() if isinstance(optimizer, GraphOptimizer) else optimizer.numbers()
    lr = numbers.get("lr")
    return value_at(lr, step) if isinstance(lr, int | float | dict) else None


def watch(id: JobId, url: Url = None, form: Form = Format.TABLE) -> None:  # noqa: A002 - the argument's name to users
    """Show a job's progress until it ends; leaving with Ctrl-C does not stop it."""
    with Client(url) as client:
        job = await_job(client, id, warn)
        _watch(job, Console(stderr=form is Format.JSON))
        if form is Format.JSON:
            print_json(job.job)


class Condition(StrEnum):
    """What `weft wait` waits for."""

    RUNNING = "running"
    ENDED = "ended"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    def holds(self, job: Job) -> bool:
        """Whether the job is so; one that has ended was running if it has started."""
        if self is Condition.RUNNING:
            return job.started_at is not None
        return job.state.is_terminal if self is Condition.ENDED else job.state.value == self.value


def wait(
    id: JobId,  # noqa: A002 - the argument's name to users
    *,
    for_: Annotated[Condition, typer.Option("--for", help="What to wait for.")] = Condition.SUCCEEDED,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="TIME", help="The longest wait: 30s, 5m, 2h.", show_default=False),
    ] = None,
    url: Url = None,
    form: Form = Format.TABLE,
) -> None:
    """Wait until a job has succeeded, or for another state. Exit code 1 if it ends otherwise, or after
    --timeout."""
    timeout_s = None if timeout is None else _duration(timeout, "--timeout").total_seconds()
    with Client(url) as client:
        found = await_job(client, id, warn)
        job = found.wait_until(for_.holds, timeout_s)
        if for_ is Condition.SUCCEEDED:
            found.succeeded()
    if not for_.holds(job):
        why = command(f"logs {job.id}")
        raise WeftError(f"{render.state_line(job)}; it cannot become {for_.value} any more: {why} says what led to it")
    if form is Format.JSON:
        print_json(job)
    else:
        say(render.state_line(job))


def logs(
    id: JobId,  # noqa: A002 - the argument's name to users
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the job ends.")] = False,
    tail: Annotated[
        int | None,
        typer.Option(
            "--tail",
            min=0,
            help="How many of the newest events.  [default: 50; all with -o json or --after]",
            show_default=False,
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All events from the job's beginning.")] = False,
    after: Annotated[int, typer.Option("--after", min=0, help="Only events after this number, the `seq` in JSON.")] = 0,
    url: Url = None,
    form: Form = Format.TABLE,
) -> None:
    """Print the newest events of a job: states, steps, metrics, messages. -o json prints all of them, one a line."""
    if all_ and tail is not None:
        raise ArgumentError("give --tail or --all, not both")
    if not (all_ or after or form is Format.JSON):
        tail = LOG_TAIL if tail is None else tail
    out = Console(soft_wrap=True, highlight=False)
    with Client(url) as client:
        job = await_job(client, id, warn) if follow else client.job(id)
        for event in job.narrated(after, tail=tail) if follow else job.log(after, tail=tail):
            if isinstance(event, Notice):
                warn(event.text)
            elif form is Format.JSON:
                out.out(event.model_dump_json(), highlight=False)
            else:
                left_out = 0 if tail is None else event.seq - 1 - after
                if left_out:
                    warn(f"{render.counted(left_out, 'earlier event')}; `{command(f'logs {job.id} --all')}` prints all")
                tail = None  # that was the first
                out.print(render.event_line(event))
        if not follow and job.state.is_waiting and job.job.reason:
            warn(render.state_line(job.job))


def stop(
    id: JobId,  # noqa: A002 - the argument's name to users
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show progress until the job ends.")] = False,
    url: Url = None,
    form: Form = Format.TABLE,
) -> None:
    """End a running job within seconds, and keep what it has trained as its result."""
    with Client(url) as client:
        job = client.job(id)
        job.stop()
        if form is Format.JSON:
            print_json(job.job)
        else:
            say(render.state_line(job.job))
        if watch:
            _watch(job, Console(stderr=True))


def scale(
    id: JobId,  # noqa: A002 - the argument's name to users
    *,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="New number of workers.")] = None,
    shards: Annotated[int | None, typer.Option("--shards", min=0, help="New number of shards.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show progress until the job ends.")] = False,
    url: Url = None,
    form: Form = Format.TABLE,
) -> None:
    """Change the workers and shards of a running job: it restarts on them from a snapshot, within seconds."""
    with Client(url) as client:
        job = client.job(id)
        before = job.job
        now = job.scale(workers=workers, shards=shards)
        same = workers in {None, now.workers} and shards in {None, now.shards} and now.reason == before.reason
        if form is Format.JSON:
            print_json(now)
        elif same:
            say(f"job {now.id} ({now.name}) has {render.places(now.workers, now.shards)} already; nothing changes")
        else:
            say(render.state_line(now))
        if watch:
            _watch(job, Console(stderr=True))


def cancel(
    id: JobId,  # noqa: A002 - the argument's name to users
    discard: Annotated[
        bool, typer.Option("--discard", help="Also delete its snapshots, so it cannot be resumed.")
    ] = False,
    url: Url = None,
    form: Form = Format.TABLE,
) -> None:
    """End a job at once, without a result; `weft stop` keeps what it has trained."""
    with Client(url) as client:
        job = client.job(id).cancel(discard=discard)
    if form is Format.JSON:
        print_json(job)
        return
    say(f"job {job.id} ({job.name}) {job.state.told}")
    if job.snapshot is not None:
        say(f"go on from step {job.snapshot}: {command(f'resume {job.id}')}")


def rm(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID...", help="Ids of jobs, or the first characters of them.")
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", help="Jobs that ended longer ago than this: 30d, 12h, 90m.", metavar="AGE"),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = None,
    form: Form = Format.TABLE,
) -> None:
    """Delete jobs that have ended, with their results, snapshots and logs."""
    if (not ids) == (older_than is None):
        raise typer.BadParameter(f"give jobs' ids, or --older-than{', not both' if ids else ''}", param_hint="ID...")
    if form is Format.JSON and not yes:
        raise typer.BadParameter("-o json asks nothing: add --yes", param_hint="--yes")
    age = None if older_than is None else _duration(older_than, "--older-than")
    with Client(url) as client:
        if age is None:
            found = list({job.id: job for job in (client.job(each) for each in ids or ())}.values())
        else:
            ended = client.jobs(state=[state for state in JobState if state.is_terminal])
            found = [each for each in ended if each.job.ended_at and render.now() - each.job.ended_at > age]
        if not found and form is Format.TABLE:
            say(f"no job ended more than {older_than} ago; `{command('jobs')}` lists all")
            return
        going = next((each.job for each in found if not each.state.is_terminal), None)
        if going is not None:
            raise WeftError(f"job {going.id} {going.state.told}; end it first: {command(f'cancel {going.id}')}")
        for each in found if form is Format.TABLE else ():
            say(f"{render.state_line(each.job)}, {render.size(each.job.kept_bytes)}")
        total = render.size(sum(each.job.kept_bytes for each in found))
        what = f"{render.counted(len(found), 'job')} with results, snapshots and logs ({total})"
        if not yes:
            try:
                typer.confirm(f"remove {what} for ever?", abort=True)
            except typer.Abort:
                raise WeftError("nothing was removed; --yes removes without asking") from None
        client.remove(*found)
    if form is Format.JSON:
        print_json({"removed": [each.id for each in found]})
    else:
        say(f"removed {what}")


def agents(url: Url = None, form: Form = Format.TABLE) -> None:
    """List the cluster's workers, which compute, and shards, which hold parameters, with the jobs that they run."""
    with Client(url) as client:
        found = sorted(client.agents(), key=render.agent_order)
    if form is Format.JSON:
        print_json(AgentList(agents=found))
    elif found:
        render.print_table(render.agents_table(found, render.room()))
    else:
        say(f"no workers or shards have registered; `{command('up')}` starts some with a server of their own")


def _duration(text: str, option: str) -> timedelta:
    """Raises typer.BadParameter."""
    units = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
    try:
        return timedelta(**{units[text[-1:]]: float(text[:-1])})
    except (KeyError, ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is not like 30d, 12h, 90m or 45s", param_hint=option) from None


def _tell_submitted(job: JobHandle, *, form: Format, watch: bool) -> None:
    if form is Format.JSON:
        print_json(job.job)
    elif not watch:
        say(render.state_line(job.job))
        if job.job.beginning is not None:
            say(f"it {job.job.beginning}")
        say(f"watch it with: {command(f'watch {job.id}')}")
        if job.job.state.is_waiting and job.job.reason:
            say(f"cancel it with: {command(f'cancel {job.id}')}")
    if watch:
        _watch(job, Console(stderr=True))  # stdout has the answer alone


def _watch(job: JobHandle, progress: Console) -> None:
    try:
        job.watch(progress)
    except JobError:
        progress.print(f"all of it: {command(f'logs {job.id}')}", highlight=False, markup=False, soft_wrap=True)
        raise
