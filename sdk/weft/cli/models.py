"""`weft inspect`, and ONNX files as jobs: read here, sent as a graph and a document of values."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from weft.api.values import SAFETENSORS
from weft.cli.model_options import SUFFIX, FileOptions, ModelOptions
from weft.cli.options import Form, Format, Grouped, JobId, Url, check_suffix, print_json, warn, with_records
from weft.client import Client
from weft.errors import ArgumentError, InvalidRequestError
from weft.job_handle import JobHandle
from weft.terminal import Console

if TYPE_CHECKING:
    from weft.records import Array
    from weft.trainable import Trainable

ModelFile = Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The model.", show_default=False)]


def add_to(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("inspect", cls=Grouped)(inspect_)
    app.command()(export)


@with_records
def inspect_(file: ModelFile, *, form: Form = Format.TABLE, model: FileOptions) -> None:
    """Print what an ONNX file contains: inputs, outputs, parameters, constants, operators, and what cannot train.

    No server is needed. With --loss, the graph that would be trained is printed.
    """
    if not file.exists():
        raise ArgumentError(f"there is no file {file.absolute()}")
    made = model.trainable(file) if model.is_of_a_loss else model.model(file)
    if form is Format.JSON:
        from weft.model_report import document  # most commands build no graph

        print_json(document(made.graph, made.warnings))
    else:
        Console().write(f"{made}\n")


def export(
    id: JobId,  # noqa: A002 - the argument's name to users
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.onnx|FILE.safetensors", help="The file to write.", dir_okay=False, show_default=False
        ),
    ],
    *,
    outputs: Annotated[
        list[str] | None,
        typer.Option("--output", metavar="NAME", help="A value of the graph as an output; may be repeated."),
    ] = None,
    opset: Annotated[int, typer.Option("--opset", help="ONNX opset; 0 chooses one that most runtimes take.")] = 0,
    ema: Annotated[bool, typer.Option("--ema", help="Write the averaged parameters; for a job with `ema`.")] = False,
    training: Annotated[
        bool, typer.Option("--training", help="Keep Dropout and BatchNormalization in training mode.")
    ] = False,
    url: Url = None,
    form: Form = Format.TABLE,
) -> None:
    """Write a job's trained model to an ONNX file for inference.

    It has the outputs of the submitted model, without loss and target, and the parameters as they are now, also while
    the job runs. A file whose name ends in .safetensors gets the parameters alone.
    """
    check_suffix(file, SUFFIX, SAFETENSORS)
    with Client(url) as client:
        job = client.job(id)
        if file.suffix == SAFETENSORS:
            job.save(file, ema=ema)
        else:
            job.export_onnx(file, outputs=outputs, opset=opset, ema=ema, training=training)
    if form is Format.JSON:
        print_json({"path": str(file), "bytes": file.stat().st_size})
    else:
        Console(soft_wrap=True, highlight=False, markup=False).print(f"{file}: {file.stat().st_size:,} bytes")


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
    from weft.model_report import per_worker  # most commands build no graph

    trainable = trainable_of(path, model)
    for sentence in per_worker(trainable.graph) if (model.workers or 1) > 1 else ():
        warn(f"warning: {sentence}")
    return ModelJob(model.job(path, trainable, **length).model_dump_json(), trainable.values)


def trainable_of(path: Path, model: ModelOptions) -> Trainable:
    """The file with its loss. Warnings are shown. Raises ArgumentError, GraphRefusedError."""
    if not path.exists():
        raise ArgumentError(f"there is no file {path.absolute()}")
    trainable = model.trainable(path)
    for warning in trainable.warnings:
        warn(f"warning: {warning}")
    return trainable


@contextmanager
def with_hints(option: str) -> Iterator[None]:
    """Adds to a refusal because of a column that is not there what to type: `option`, and what feeds the input."""
    try:
        yield
    except InvalidRequestError as error:
        for each in error.problem.errors:
            if each.pointer.startswith("/data/columns") and "no column" in each.detail:
                name = each.node or each.pointer.rpartition("/")[2]
                error.add_note(f"to feed {name!r} from another column: {option}{name}=COLUMN")
        raise


def submit_model(client: Client, job: ModelJob) -> JobHandle:
    """Sends the job with its values, and shows how far they are. Raises what `Client.submit_spec` does."""
    if not (job.values and sys.stderr.isatty()):
        return client.submit_spec(job.document, values=job.values)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("checking the job", total=None)

        def show(done: int, total: int) -> None:
            shown.update(task, description="sending parameters", completed=done, total=total)

        return client.submit_spec(job.document, values=job.values, progress=show)
