"""`python -m weft_kvstore`: the shard daemon's command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from weft.agent.children import ForkError
from weft_kvstore.encryption.key_files import make_key_files
from weft_kvstore.errors import StoreError
from weft_kvstore.serving.daemon import ShardSettings, serve

VARIABLES_ALONE: Final = {"token", "credit_bytes", "frame_bytes", "silence_s", "alive_file"}
"""Settings that are no options: a secret, and what nobody sets by hand."""


def main(
    *,
    new_curve_keys: Annotated[
        Path | None, typer.Option(metavar="NAME", help="Make CURVE keys: NAME.key and NAME.key_secret; start nothing.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Say what each shard of the description will hold, and start nothing.")
    ] = False,
    **given: Any,
) -> None:
    """Serves one shard of a store that is used alone, or parameters for a weft server.

    Every setting is also an environment variable, which its option names.
    """
    given = {name: value for name, value in given.items() if value not in {None, False}}
    description = Path(given["description"]) if "description" in given else None
    if new_curve_keys is not None and given:
        raise typer.BadParameter("--new-curve-keys starts nothing: give it alone")
    if check and description is None:
        raise typer.BadParameter("--check needs --description, the file to be checked")
    try:
        if new_curve_keys is not None:
            _make_keys(new_curve_keys)
        elif check and description is not None:
            from weft_kvstore.serving.holdings import shown_holdings  # Daemons do without what it imports.

            for line in shown_holdings(description):
                typer.echo(line)
        else:
            _serve(_settings(given))
    except (ForkError, StoreError, ValueError, OSError, MemoryError) as error:
        typer.echo(f"error: {str(error) or 'there is no memory for it'}", err=True)  # MemoryError may say nothing.
        raise typer.Exit(1) from None


def _serve(settings: ShardSettings) -> None:
    if settings.description is None:
        serve(settings)
        return
    from weft_kvstore.serving.shard_process import serve_alone  # A daemon's children serve, and it does without.

    serve_alone(settings)


def _make_keys(name: Path) -> None:
    public, secret, keys = make_key_files(name)
    typer.echo(f"{secret}: for the process whose keys they are: --curve-keys of a shard, curve_keys= of a client")
    typer.echo(f"{public}: for whoever lets it in: in the directory that --curve-clients names")
    typer.echo(f"the public key, which of a shard goes into curve_keys of the description: {keys.public}")


def _settings(given: dict[str, Any]) -> ShardSettings:
    try:
        settings = ShardSettings(**given)
    except ValidationError as error:
        raise typer.BadParameter("; ".join(_told(one, given) for one in error.errors())) from error
    if "metrics_host" in given and settings.metrics_port is None:
        raise typer.BadParameter("--metrics-host needs --metrics-port: without a port no metrics are served")
    return settings


def _told(error: ErrorDetails, given: dict[str, Any]) -> str:
    """What is wrong, by the option or the variable that said it."""
    text = error["msg"].removeprefix("Value error, ")
    if not error["loc"]:
        return text
    name = str(error["loc"][0])
    option = "--" + name.replace("_", "-")
    return f"{f'WEFT_SHARD_{name.upper()}' if name not in given else option}: {text}"


def _options() -> Iterator[Parameter]:
    """An option for each setting, which says what the setting does; what it is given is checked with the others."""
    for name, field in ShardSettings.model_fields.items():
        if name in VARIABLES_ALONE:
            continue
        flag, told = "--" + name.replace("_", "-"), f"{field.description} WEFT_SHARD_{name.upper()}."
        if field.annotation is bool:
            annotation: Any = Annotated[bool, typer.Option(flag, help=told)]
            yield Parameter(name, Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
        else:
            annotation = Annotated[str | None, typer.Option(flag, help=told)]
            yield Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _with_options(function: Callable[..., None]) -> None:
    *own, _ = signature(function, eval_str=True).parameters.values()
    every = [*own, *_options()]
    function.__signature__ = Signature(every)  # type: ignore[attr-defined]  # what typer reads
    function.__annotations__ = {one.name: one.annotation for one in every}


_with_options(main)

if __name__ == "__main__":
    typer.run(main)
