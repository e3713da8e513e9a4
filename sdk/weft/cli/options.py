"""Options and arguments that several commands have."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import partial
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from typer.core import TyperCommand

from weft.client import Client
from weft.errors import ArgumentError
from weft.event_stream import Resumption, polled
from weft.job_handle import JobHandle
from weft.terminal import Console

PATIENCE_S = 30.0
"""With a server that has not answered yet: enough to be started again; there may as well be none."""

Url = Annotated[str | None, typer.Option("--url", help="The server's URL.  [env: WEFT_URL]", show_default=False)]


class Format(StrEnum):
    """What a command prints its answer as."""

    TABLE = "table"
    JSON = "json"


Form = Annotated[Format, typer.Option("-o", "--format", help="Print text for people, or JSON for scripts.")]
JobId = Annotated[str, typer.Argument(metavar="ID", help="A job's id, or its first characters.", show_default=False)]


def print_json(document: BaseModel | Mapping[str, Any], indent: int | None = 2) -> None:
    """Prints an answer for scripts."""
    text = (
        document.model_dump_json(indent=indent) if isinstance(document, BaseModel) else dumps(document, indent=indent)
    )
    Console().out(text, highlight=False)


def say(text: str) -> None:
    """Prints a sentence as it is."""
    Console(soft_wrap=True, highlight=False, markup=False).print(text)


def warn(text: str) -> None:
    """Prints a sentence that is no answer, to standard error."""
    Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(text, style="yellow")


def check_suffix(file: Path, *written: str) -> None:
    """Raises ArgumentError for a file to write whose name says that it is of another format. A name may say none."""
    if file.suffix not in {"", *written}:
        raise ArgumentError(
            f"{file}: weft writes no {file.suffix} files: end the name in {' or '.join(written)}. In Python, "
            "job.load_into(module) copies the values into a PyTorch module, and job.values() returns arrays"
        )


class Grouped(TyperCommand):
    """A command whose help lists options under the heading of their panel."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[Any]] = {"Arguments": [], "Options": []}
        for each in self.get_params(ctx):
            record = each.get_help_record(ctx)
            if record is not None:
                title = "Arguments" if each.param_type_name == "argument" else getattr(each, "rich_help_panel", None)
                sections.setdefault(title or "Options", []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def with_records(function: Callable[..., None]) -> Callable[..., None]:
    """A command some of whose keywords are dataclasses, each field of which becomes an option of its own."""
    own, hints = inspect.signature(function), typing.get_type_hints(function, include_extras=True)
    records = {name: kind for name, kind in hints.items() if is_dataclass(kind) and isinstance(kind, type)}

    @functools.wraps(function)
    def command_(*args: Any, **given: Any) -> None:
        made = {
            name: kind(**{each.name: given.pop(each.name) for each in fields(kind) if each.name in given})
            for name, kind in records.items()
        }
        function(*args, **given, **made)

    parameters = [each.replace(annotation=hints[name]) for name, each in own.parameters.items() if name not in records]
    for kind in records.values():
        told = typing.get_type_hints(kind, include_extras=True)
        parameters += [
            inspect.Parameter(
                each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=told[each.name]
            )
            for each in fields(kind)
        ]
    command_.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    command_.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": None}
    return command_


def await_job(client: Client, id: str, say: Callable[[str], None]) -> JobHandle:  # noqa: A002 - what users call it
    """What `client.job` gives, also of a server that is being started again: `say` is told that it is waited for."""
    said = False
    for found in polled(client.http, partial(client.job, id), resumption=Resumption(patience_s=PATIENCE_S)):
        if isinstance(found, JobHandle):
            return found
        if not said:
            say(found.text)
        said = True
    raise AssertionError("it is asked until it answers or the patience ends")
