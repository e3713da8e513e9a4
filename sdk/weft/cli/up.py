"""`weft up` and `weft down`: a cluster on this machine, in the foreground or in the background."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, Never

import typer
from pydantic import ValidationError
from rich.text import Text

from weft.agent.held_files import OwnLog
from weft.agent.machine import full_disk
from weft.agent.printable import escaped
from weft.agent.private import opener
from weft.api.job import Job
from weft.api.lifecycle import JobState
from weft.cli import render
from weft.cli.options import Form, Format, print_json, say
from weft.client import DEFAULT_URL, Client
from weft.cluster import LOGS, OWN_LOG, Cluster, listening_in
from weft.command_line import command
from weft.errors import DEFAULT_PORT, ClusterError, WeftError
from weft.exclusive import holder
from weft.http import Retry
from weft.supervisor import Message, Supervisor
from weft.terminal import Console

LOOK_S = 0.5
ANSWER_S = 2.0
"""For which the end waits to be told what runs."""
NAMED_JOBS = 3
END_TIMEOUT_S = 30.0
"""For `weft down`: longer than a cluster gives its agents and then its server."""
POLL_S = 0.05

_SERVES, _FAILED = "serves", "failed"

DIRECTORY = Path(".weft")
Directory = Annotated[Path, typer.Option(help="Where database, parameters and logs are kept.")]


def _device(name: str | None) -> str | None:
    if name is not None and not re.fullmatch(r"cpu|auto|cuda:\d{1,3}", name):
        raise typer.BadParameter(f"{name!r} is none of cpu, auto, cuda:0, cuda:1, ...")
    return name


def add_to(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(up)
    app.command()(down)


def up(
    *,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 2,
    shards: Annotated[int, typer.Option(min=1, help="Shard processes.")] = 2,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The server's port on 127.0.0.1; 0 takes a free one.")
    ] = DEFAULT_PORT,
    directory: Directory = DIRECTORY,
    data_root: Annotated[Path, typer.Option(help="The folder in which jobs may read data.")] = Path(),
    device: Annotated[
        str | None,
        typer.Option(help="What workers compute on: cpu, cuda:0, or auto.", show_default=False, callback=_device),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Run in the background: return once the cluster serves.")
    ] = False,
    form: Form = Format.TABLE,
) -> None:
    """Start a server, workers, which compute, and shards, which hold parameters, on this machine, until Ctrl-C or
    `weft down`.

    A process that dies is restarted: the server on its port with its data, a worker or shard under its name.
    """
    make = partial(Cluster, workers, shards, port=port, directory=directory, data_root=data_root, device=device)
    err = Console(stderr=True, highlight=False, soft_wrap=True)
    if detach:
        _in_background(err, make, form)
        return
    with err.status("starting") as status:

        def serving(cluster: Cluster) -> None:
            status.stop()
            _greet(cluster, cluster.url, cluster.directory, form, detached=False)

        _keep(make(progress=status.update), serving)


def down(directory: Directory = DIRECTORY, form: Form = Format.TABLE) -> None:
    """End the cluster that `weft up` started in this directory. Its jobs go on with the next `weft up` there, from
    their last snapshots."""
    path = directory.absolute()
    process = holder(path)
    if process is None:
        _tell_down(f"no cluster runs in {path}", path, None, form)
        return
    if b"up" not in Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0"):
        raise ClusterError(f"the cluster in {path} is not of `weft up`: end process {process}, which started it")
    if form is Format.TABLE:
        say(_stopping(_running_in(path)))
    os.kill(process, signal.SIGTERM)
    deadline = time.monotonic() + END_TIMEOUT_S
    while holder(path) == process:
        if time.monotonic() > deadline:
            raise ClusterError(f"it has not ended within {END_TIMEOUT_S:g} s; kill it with: kill -9 {process}")
        time.sleep(POLL_S)
    _tell_down(f"the cluster in {path} has ended", path, process, form)


def _tell_down(text: str, directory: Path, ended: int | None, form: Format) -> None:
    if form is Format.JSON:
        print_json({"directory": str(directory), "ended": ended})
    else:
        say(text)


def _keep(cluster: Cluster, serving: Callable[[Cluster], None]) -> None:
    """Starts the cluster, calls `serving`, and looks after the cluster until a signal ends this process."""
    terminal = os.ttyname(2) if os.isatty(2) else None
    err = Console(stderr=True, highlight=False, soft_wrap=True)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    cluster.start()
    try:
        serving(cluster)
        _look_after(err, cluster, terminal)
    except KeyboardInterrupt:
        err.print(_stopping(_running(cluster.url)), markup=False)
    finally:
        cluster.stop()


def _in_background(err: Console, make: Callable[..., Cluster], form: Format) -> None:
    """Forks. The child keeps the cluster; the parent shows how its start goes, and returns once it serves.

    Raises ClusterError for what goes wrong in the child before that.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _child(make, writing)
    os.close(writing)
    kind, text = "", ""
    try:
        with open(reading) as pipe, err.status("starting") as status:
            for line in pipe:
                kind, text = json.loads(line)
                status.update(text)
    except KeyboardInterrupt:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
        raise
    if kind != _SERVES:
        os.waitpid(child, 0)
        raise ClusterError(text if kind == _FAILED else "the cluster's process was ended while it started")
    url, directory = text.split(" ", 1)
    _greet(make(), url, Path(directory), form, detached=True)


def _child(make: Callable[..., Cluster], writing: int) -> Never:
    """The process in the background: it has no terminal, and tells through the pipe how the start goes."""
    os.setsid()  # Ctrl-C and the end of the terminal reach the parent alone
    with open(writing, "w", buffering=1) as pipe:

        def tell(kind: str, text: str) -> None:
            pipe.write(f"{json.dumps([kind, text])}\n")

        def serving(cluster: Cluster) -> None:
            with (
                open(os.devnull, "rb") as nothing,
                open(cluster.directory / LOGS / OWN_LOG, "ab", opener=opener) as log,
            ):
                for number, file in enumerate((nothing, log, log)):
                    os.dup2(file.fileno(), number)
            tell(_SERVES, f"{cluster.url} {cluster.directory}")
            pipe.close()

        try:
            _keep(make(progress=partial(tell, "starts")), serving)
        except (WeftError, OSError) as error:
            if pipe.closed:
                raise
            tell(_FAILED, str(error))
    sys.exit()


def _running_in(directory: Path) -> list[Job]:
    try:
        return _running(listening_in(directory).url)
    except (OSError, ValidationError):
        return []  # its server has not listened yet


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
    return f"stopping; {count} still {verb} with the next `weft up` here, from the last snapshot: {named}{more}"


def _fitted(line: str, console: Console) -> str:
    """A line of a log, which is set in, cut to the terminal; others are ours, and whole."""
    return render.cut(line, console.width) if line.startswith("  ") and console.is_terminal else line


def _interrupt(_number: int, _frame: FrameType | None) -> Never:
    """SIGTERM and SIGHUP end the command in the way that Ctrl-C does."""
    raise KeyboardInterrupt


def _greet(cluster: Cluster, url: str, directory: Path, form: Format, *, detached: bool) -> None:
    if form is Format.JSON:
        print_json(
            {
                "url": url,
                "directory": str(directory),
                "data_root": str(cluster.data_root),
                "workers": cluster.workers,
                "shards": cluster.shards,
            }
        )
        return
    out = Console(highlight=False, soft_wrap=True)
    on = f"{render.counted(cluster.workers, 'worker')}, {render.counted(cluster.shards, 'shard')}"
    out.print(Text.assemble("weft is up at ", (url, "bold green"), f": {on}"))
    end = (
        f"`{command('down')}`" if directory == DIRECTORY.absolute() else f"`{command(f'down --directory {directory}')}`"
    )
    lines = [
        f"  jobs may read data in {cluster.data_root}",
        f"  logs in {directory / LOGS}",
        "Next:" if detached else "Next, in another terminal:",
        *([f"  export WEFT_URL={url}"] if url != DEFAULT_URL else []),
        f"  {command('agents')}",
        "  python PROGRAM.py   # one that calls weft.fit",
        f"HTTP API: {url}/docs. {end if detached else 'Ctrl-C'} stops everything.",
    ]
    out.print("\n".join(lines), markup=False)
    if (full := full_disk(directory)) is not None:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"{full}, or no log is written", markup=False)


def _look_after(err: Console, cluster: Cluster, terminal: str | None) -> Never:
    """Tells of each daemon that ends, and starts it again."""
    never, supervisor, log = threading.Event(), Supervisor(cluster), OwnLog()
    while True:
        for message in supervisor.poll():
            log.reopen()
            _print(err, message, terminal)
        never.wait(LOOK_S)


def _print(err: Console, message: Message, terminal: str | None) -> None:
    """Where the log takes nothing, since the disk is full, on the terminal that the cluster was started from."""
    try:
        for line in message.text.splitlines():
            err.print(Text(_fitted(line, err), "red" if message.is_error else "green"))
    except OSError:
        with contextlib.suppress(OSError):  # it may be closed, and nobody waits for one that stands still
            there = os.open(terminal or os.devnull, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
            try:
                os.write(there, f"weft: {escaped(message.text)}\r\n".encode())
            finally:
                os.close(there)
