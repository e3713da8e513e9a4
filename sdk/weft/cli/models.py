"""`weft inspect`, and ONNX files as jobs: read here, sent as a graph and a document of values."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from weft.api.job import FromUpload
from weft.cli.model_options import SUFFIX, ModelOptions, with_model_options
from weft.client import Client
from weft.errors import ArgumentError, InvalidRequestError
from weft.job_handle import JobHandle

if TYPE_CHECKING:
    from weft.records import Array

ModelFile = Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The model.", show_default=False)]


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("inspect")(inspect_)


@with_model_options
def inspect_(file: ModelFile, *, model: ModelOptions) -> None:
    """Print what an ONNX file has: inputs, outputs, parameters, constants, operators, and what cannot train.

    Nothing is sent. With --loss, what is printed is the graph that would be trained.
    """
    from weft.model_report import report  # most commands build no graph

    if not file.exists():
        raise ArgumentError(f"there is no file {file}")
    read = model.trainable(file) if model.loss is not None else model.model(file)
    print(report(read.graph, read.values, read.warnings))  # noqa: T201 - the command's output


def is_model(argument: str | Path) -> bool:
    """Whether the argument is an ONNX file by its name."""
    return str(argument).endswith(SUFFIX)


@dataclass(frozen=True, slots=True)
class ModelJob:
    """A job's JSON, and the values that go up before it."""

    document: bytes | str
    values: Mapping[str, Array] = field(default_factory=dict)


def job_of_model(path: Path, model: ModelOptions, **length: int | None) -> ModelJob:
    """The job that the options make of the file. Warnings are shown. Raises ArgumentError, GraphRefusedError."""
    if not path.exists():
        raise ArgumentError(f"there is no file {path}")
    trainable = model.trainable(path)
    for warning in trainable.warnings:
        _warn(f"warning: {warning}")
    return ModelJob(model.job(path, trainable, **length).model_dump_json(), trainable.values)


def submit_model(client: Client, job: ModelJob) -> JobHandle:
    """Sends the values, if there are any, then the job. Raises what `Client.submit_spec` does."""
    if not job.values:
        return client.submit_spec(job.document)
    document = {**json.loads(job.document), "init_from": _uploaded(client, job.values).model_dump()}
    try:
        return client.submit_spec(json.dumps(document))
    except InvalidRequestError as error:
        if any(each.pointer.startswith("/data/columns") for each in error.problem.errors):
            wanted = next(iter(document["data"]["columns"]))
            _warn(f"an input is fed by the column of its name, or by --column {wanted}=COLUMN")
        raise


def _warn(text: str) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(text, style="yellow")


def _uploaded(client: Client, values: Mapping[str, Array]) -> FromUpload:
    if not sys.stderr.isatty():
        return client.upload_values(values)
    columns = (TextColumn("sending parameters"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("", total=None)
        return client.upload_values(
            values, progress=lambda done, total: shown.update(task, completed=done, total=total)
        )
