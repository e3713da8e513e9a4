"""`python -m weft_kvstore`: the shard daemon's command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from weft.agent.children import ForkError
from weft_kvstore.encryption.key_files import make_key_files
from weft_kvstore.errors import StoreError
from weft_kvstore.serving.daemon import ShardSettings, serve


def main(
    *,
    description: Annotated[
        Path | None, typer.Option(help="A store's description, TOML or JSON: serves it alone, without a server.")
    ] = None,
    shard: Annotated[int | None, typer.Option(help="Which shard of the description this is, from 0.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Say what each shard of the description will hold, and start nothing.")
    ] = False,
    bind: Annotated[
        str | None,
        typer.Option(help="Where to listen: tcp://*:5555, port 0: any; or tcp://*:8471-8570 (WEFT_SHARD_BIND)."),
    ] = None,
    server: Annotated[str | None, typer.Option(help="The server's URL (WEFT_SHARD_SERVER).")] = None,
    name: Annotated[str | None, typer.Option(help="What people call it (WEFT_SHARD_NAME).")] = None,
    advertise: Annotated[str | None, typer.Option(help="The host by which workers reach this machine.")] = None,
    new_curve_keys: Annotated[
        Path | None, typer.Option(metavar="NAME", help="Make CURVE keys: NAME.key and NAME.key_secret; start nothing.")
    ] = None,
    curve_keys: Annotated[
        Path | None, typer.Option(help="This shard's NAME.key_secret: links are encrypted (WEFT_SHARD_CURVE_KEYS).")
    ] = None,
    curve_clients: Annotated[
        Path | None,
        typer.Option(help="A directory with the NAME.key of the clients that are let in (WEFT_SHARD_CURVE_CLIENTS)."),
    ] = None,
    table_directory: Annotated[
        Path | None, typer.Option(help="Where rows of tables lie that have no place in memory.")
    ] = None,
    table_memory: Annotated[
        str | None, typer.Option(help="How much memory the rows of one table may take, as 4GiB.")
    ] = None,
    apply_threads: Annotated[int | None, typer.Option(help="Threads that help with updates.")] = None,
    job_memory: Annotated[
        str | None, typer.Option(help="The most private memory that a job's process may take, as 4GiB.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Serves Prometheus metrics over HTTP here; 0: any free port.")
    ] = None,
    metrics_host: Annotated[
        str | None, typer.Option(help="The address for metrics; this machine alone if left out.")
    ] = None,
    exit_with_parent: Annotated[
        bool, typer.Option("--exit-with-parent", help="End when standard input closes.")
    ] = False,
) -> None:
    """Serves one shard of a store that is used alone, or parameters for a weft server.

    Every setting is also a variable WEFT_SHARD_...
    """
    given: dict[str, Any] = {
        "server": server,
        "name": name,
        "bind": bind,
        "advertise": advertise,
        "description": description,
        "shard": shard,
        "curve_keys": curve_keys,
        "curve_clients": curve_clients,
        "table_directory": table_directory,
        "table_memory": table_memory,
        "apply_threads": apply_threads,
        "job_memory": job_memory,
        "metrics_port": metrics_port,
        "metrics_host": metrics_host,
        "exit_with_parent": exit_with_parent or None,
    }
    if new_curve_keys is not None and any(value is not None for value in given.values()):
        raise typer.BadParameter("--new-curve-keys starts nothing: give it alone")
    if check and description is None:
        raise typer.BadParameter("--check needs --description, the file to be checked")
    try:
        if new_curve_keys is not None:
            _make_keys(new_curve_keys)
        elif check and description is not None:
            from weft_kvstore.serving.stand_alone import show_holdings  # Daemons do without what it imports.

            show_holdings(description, shard)
        else:
            _serve(_settings(given))
    except (ForkError, StoreError, ValueError, OSError, MemoryError) as error:
        typer.echo(f"error: {str(error) or 'there is no memory for it'}", err=True)  # MemoryError may say nothing.
        raise typer.Exit(1) from None


def _serve(settings: ShardSettings) -> None:
    if settings.description is None or settings.shard is None:
        serve(settings)
        return
    from weft_kvstore.serving.stand_alone import serve_alone  # A daemon's children serve, and it does without.

    serve_alone(settings.description, settings.shard, settings)


def _make_keys(name: Path) -> None:
    public, secret, keys = make_key_files(name)
    typer.echo(f"{secret}: for the process whose keys they are: --curve-keys of a shard, curve_keys= of a client")
    typer.echo(f"{public}: for whoever lets it in: in the directory that --curve-clients names")
    typer.echo(f"the public key, which of a shard goes into curve_keys of the description: {keys.public}")


def _settings(given: dict[str, Any]) -> ShardSettings:
    try:
        settings = ShardSettings(**{field: value for field, value in given.items() if value is not None})
    except ValidationError as error:
        raise typer.BadParameter("; ".join(_told(one, given) for one in error.errors())) from error
    if given["metrics_host"] is not None and settings.metrics_port is None:
        raise typer.BadParameter("--metrics-host needs --metrics-port: without a port no metrics are served")
    return settings


def _told(error: ErrorDetails, given: dict[str, Any]) -> str:
    """What is wrong, by the option or the variable that said it."""
    text = error["msg"].removeprefix("Value error, ")
    if not error["loc"]:
        return text
    name = str(error["loc"][0])
    option = "--" + name.replace("_", "-")
    return f"{f'WEFT_SHARD_{name.upper()}' if given.get(name) is None else option}: {text}"


if __name__ == "__main__":
    typer.run(main)
