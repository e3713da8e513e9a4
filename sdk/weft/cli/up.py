"""`weft up`: a cluster on this machine, until Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, Never

import typer
from rich.text import Text

from weft.api.job import Job
from weft.api.lifecycle import JobState
from weft.cli import render
from weft.client import DEFAULT_URL, Client
from weft.cluster import Cluster
from weft.command_line import command
from weft.errors import DEFAULT_PORT, WeftError
from weft.http import Retry
from weft.tending import Tending
from weft.terminal import Console

LOOK_S = 0.5
ANSWER_S = 2.0
"""For which the end waits to be told what runs."""
NAMED_JOBS = 3


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(up)


def up(
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 2,
    shards: Annotated[int, typer.Option(min=1, help="Shard processes.")] = 2,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The server's port on 127.0.0.1; 0 takes a free one.")
    ] = DEFAULT_PORT,
    directory: Annotated[Path, typer.Option(help="Where database, parameters and logs are kept.")] = Path(".weft"),
    data_root: Annotated[Path, typer.Option(help="Jobs may read data below this directory.")] = Path(),
) -> None:
    """Start a server, shards and workers on this machine, and keep them until Ctrl-C.

    One that ends is started again: the server on its port and data, a worker or shard under its name.
    """
    out, err = Console(highlight=False, soft_wrap=True), Console(stderr=True, highlight=False, soft_wrap=True)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    with err.status("starting") as status:
        cluster = Cluster(workers, shards, port=port, directory=directory, data_root=data_root, progress=status.update)
        cluster.start()
    try:
        _greet(out, cluster)
        _look_after(err, cluster)
    except KeyboardInterrupt:
        err.print(_stopping(_running(cluster.url)), markup=False)
    finally:
        cluster.stop()


def _running(url: str) -> list[Job]:
    """The jobs that hold agents, or did and wait for others; none where the server does not answer at once."""
    try:
        with Client(url, timeout_s=ANSWER_S, retry=Retry(attempts=1)) as client:
            return [
                job.job
                for job in client.jobs(
                    state=[state for state in JobState if not state.is_terminal and state is not JobState.PENDING]
                )
            ]
    except WeftError:
        return []


def _stopping(running: Sequence[Job]) -> str:
    if not running:
        return "stopping"
    verb = "runs, and goes on" if len(running) == 1 else "run, and go on"
    named = ", ".join(f"{job.id} ({job.name})" for job in running[:NAMED_JOBS])
    more = ", ..." if len(running) > NAMED_JOBS else ""
    count = render.counted(len(running), "job")
    return f"stopping; {count} still {verb} with the next `weft up` here: {named}{more}"


def _fitted(line: str, console: Console) -> str:
    """A line of a log, which is set in, cut to the terminal; others are ours, and whole."""
    return render.cut(line, console.width) if line.startswith("  ") and console.is_terminal else line


def _interrupt(_number: int, _frame: FrameType | None) -> Never:
    """SIGTERM and SIGHUP end the command in the way that Ctrl-C does."""
    raise KeyboardInterrupt


def _greet(out: Console, cluster: Cluster) -> None:
    on = f"{render.counted(cluster.workers, 'worker')}, {render.counted(cluster.shards, 'shard')}"
    out.print(Text.assemble("weft is up at ", (cluster.url, "bold green"), f": {on}"))
    out.print(f"  data below {cluster.data_root}", markup=False)
    out.print(f"  logs in {cluster.directory / 'logs'}", markup=False)
    out.print("Next, in another terminal:", markup=False)
    if cluster.url != DEFAULT_URL:
        out.print(f"  export WEFT_URL={cluster.url}", markup=False)
    out.print(f"  {command('agents')}", markup=False)
    out.print(f"  {command('submit JOB.json --watch')}", markup=False)
    out.print(f"HTTP API: {cluster.url}/docs. Ctrl-C stops everything.", markup=False)


def _look_after(err: Console, cluster: Cluster) -> Never:
    """Tells of each daemon that ends, and starts it again."""
    never, tending = threading.Event(), Tending(cluster)
    while True:
        for told in tending.look():
            for line in told.text.splitlines():
                err.print(Text(_fitted(line, err), "red" if told.is_bad else "green"))
        never.wait(LOOK_S)
