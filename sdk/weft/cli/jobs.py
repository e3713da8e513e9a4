"""Commands about jobs: submit, jobs, show, logs, cancel, programs; and agents."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer
from rich.console import Console

from weft.api.agent import AgentList
from weft.api.job import JobPage
from weft.api.lifecycle import JobState
from weft.cli import render
from weft.cli.options import JobId, Json, Url, find_job
from weft.client import Client
from weft.errors import WeftError
from weft.job_handle import JobHandle

SpecFile = Annotated[typer.FileBinaryRead, typer.Argument(metavar="JOB.json", help="The job; - is standard input.")]
States = Annotated[list[JobState] | None, typer.Option("--state", help="Only jobs in this state; may be repeated.")]


def add_to(app: typer.Typer) -> None:
    """Adds the commands."""
    for command in (submit, jobs, show, logs, cancel, programs, agents):
        app.command()(command)


def submit(
    file: SpecFile,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show progress until the job ends.")] = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Submit a job: graph, data, rule and run length, as JSON."""
    spec = file.read()
    with Client(url) as client:
        job = client.submit_spec(spec)
        out = Console()
        if json:
            out.out(job.job.model_dump_json(indent=2), highlight=False)
        elif not watch:
            out.print(f"job {job.id} ({job.job.name}) is {job.state.value}", highlight=False, markup=False)
            out.print(f"watch it with: weft logs -f {job.id}", highlight=False, markup=False)
        if watch:
            _watch(job)


def jobs(
    state: States = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 20,
    url: Url = None,
    json: Json = False,
) -> None:
    """List jobs, newest first."""
    with Client(url) as client:
        found = [handle.job for handle in islice(client.jobs(state=state), limit)]
    if json:
        Console().out(JobPage(jobs=found).model_dump_json(indent=2), highlight=False)
    elif found:
        Console().print(render.jobs_table(found, render.now()))
    elif state:
        Console().print("no job is in that state; `weft jobs` lists all", highlight=False, markup=False)
    else:
        Console().print("no jobs yet; submit one with: weft submit JOB.json", highlight=False, markup=False)


def show(id: JobId, url: Url = None, json: Json = False) -> None:  # noqa: A002 - the argument's name to users
    """Show one job."""
    with Client(url) as client:
        job = find_job(client, id).job
    if json:
        Console().out(job.model_dump_json(indent=2), highlight=False)
        return
    Console().print(render.job_lines(job, render.now()))
    if job.state is JobState.SUCCEEDED:
        Console().print(f"\nsave its parameters with: weft params save {job.id} FILE.safetensors", highlight=False)


def logs(
    id: JobId,  # noqa: A002 - the argument's name to users
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    after: Annotated[int, typer.Option("--after", min=0, help="Only events after this number.")] = 0,
    url: Url = None,
    json: Json = False,
) -> None:
    """Print a job's events: states, steps, metrics, logs. With --json one event a line."""
    out = Console(soft_wrap=True, highlight=False)
    with Client(url) as client:
        job = find_job(client, id)
        for event in job.events(after) if follow else job.log(after):
            if json:
                out.out(event.model_dump_json(), highlight=False)
            else:
                out.print(render.event_line(event))


def cancel(id: JobId, url: Url = None, json: Json = False) -> None:  # noqa: A002 - the argument's name to users
    """Stop a job that has not ended."""
    with Client(url) as client:
        job = find_job(client, id).cancel()
    if json:
        Console().out(job.model_dump_json(indent=2), highlight=False)
    else:
        Console().print(f"job {job.id} ({job.name}) is {job.state.value}", highlight=False, markup=False)


def programs(id: JobId, url: Url = None, json: Json = False) -> None:  # noqa: A002 - the argument's name to users
    """Print what the converter made of a job's graph."""
    with Client(url) as client:
        job = find_job(client, id)
        text = _indented(job) if json else job.programs_text()
    Console(soft_wrap=True).out(text.rstrip("\n"), highlight=False)


def agents(url: Url = None, json: Json = False) -> None:
    """List workers and shards."""
    with Client(url) as client:
        found = client.agents()
    if json:
        Console().out(AgentList(agents=found).model_dump_json(indent=2), highlight=False)
    elif found:
        Console().print(render.agents_table(found))
    else:
        Console().print(
            "no workers or shards have registered; `weft up` starts some with a server of their own", highlight=False
        )


def _watch(job: JobHandle) -> None:
    """Progress goes to stderr, so that stdout holds the answer alone."""
    progress = Console(stderr=True)
    try:
        job.watch(progress)
    except KeyboardInterrupt:
        progress.print(f"job {job.id} goes on; `weft logs -f {job.id}` shows it, `weft cancel {job.id}` stops it")
        raise
    except WeftError:
        progress.print(f"all of it: weft logs {job.id}", highlight=False, markup=False)
        raise


def _indented(job: JobHandle) -> str:
    import json as json_  # the option's name is taken by users

    return json_.dumps(job.programs(), indent=2)
