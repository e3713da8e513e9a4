"""`python -m weft_worker`: the worker daemon's command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from weft.agent.children import ForkError
from weft.agent.startup import start_daemon
from weft.api.words import setting_sentences
from weft_worker.daemon import WorkerDaemon
from weft_worker.errors import DeviceError
from weft_worker.settings import WorkerSettings


def main(
    *,
    server: Annotated[str | None, typer.Option(help="The server's URL (WEFT_WORKER_SERVER).")] = None,
    name: Annotated[str | None, typer.Option(help="What people call this worker (WEFT_WORKER_NAME).")] = None,
    data_root: Annotated[
        list[Path] | None, typer.Option(help="A directory that data may be read from; may be given again.")
    ] = None,
    job_memory: Annotated[
        str | None, typer.Option(help="The most private memory that a job's process may take, as 4GiB.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda:0 or auto (WEFT_WORKER_DEVICE).")] = None,
    exit_with_parent: Annotated[bool, typer.Option(help="End when standard input closes.")] = False,
) -> None:
    """Runs jobs for a weft server. Every setting is also an environment variable WEFT_WORKER_..."""
    given: dict[str, Any] = {"server": server, "name": name, "device": device, "job_memory": job_memory}
    given |= {"exit_with_parent": exit_with_parent or None}
    given["data_roots"] = tuple(data_root) if data_root else None
    given = {field: value for field, value in given.items() if value is not None}
    try:
        settings = WorkerSettings(**given)
    except ValidationError as error:
        raise typer.BadParameter("; ".join(setting_sentences(error, given, "WEFT_WORKER_"))) from None
    stop = start_daemon(settings.name, exit_with_parent=settings.exit_with_parent)
    try:
        daemon = WorkerDaemon(settings)
    except (DeviceError, ForkError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    daemon.run(stop)


if __name__ == "__main__":
    typer.run(main)
