"""The options of the commands that take an ONNX file: how it is read, what it trains by, on what data."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.api.data import DataSpec
from weft.api.job import JobSpec
from weft.api.optimizer import OptimizerSpec, optimizer_of
from weft.arguments import checked
from weft.command_line import command
from weft.data import numpy_data
from weft.errors import ArgumentError
from weft.optimizers import BY_NAME

if TYPE_CHECKING:
    from weft.model import Model
    from weft.trainable import Trainable

SUFFIX = ".onnx"

OF_ANY_JOB = ("batch_size", "lr", "workers", "shards", "seed", "name")
"""Options that also stand in the place of what a job file says; the others are of ONNX files alone."""

SET_INSTEAD = {"optimizer": "optimizer", "data": "data.source.path"}
"""Options of ONNX files alone -> the field that `--set` replaces in any job."""


def _option(text: str, *names: str, metavar: str | None = None, panel: str = "For an ONNX file") -> Any:
    return typer.Option(*names, help=text, metavar=metavar, show_default=False, rich_help_panel=panel)


JOB_PANEL = "For any job (replaces what a job file says)"


def _job_option(text: str, name: str) -> Any:
    return _option(text, name, panel=JOB_PANEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """How an ONNX file is read and what it trains by; each field is an option of the commands that take one."""

    loss: Annotated[
        list[str] | None,
        _option(
            "cross_entropy, mse, l1 or bce_with_logits; log_loss or bce where the model gives probabilities, nll where "
            "it gives their logarithms; or an output that is the loss. Repeat it to train the sum of several: 0.5*mse "
            "counts half.",
            "--loss",
            metavar="LOSS",
        ),
    ] = None
    output: Annotated[
        list[str] | None,
        _option(
            "The output, or another value of the model, that the loss compares with the target; once for each loss.",
            "--output",
            metavar="NAME",
        ),
    ] = None
    target: Annotated[
        list[str] | None,
        _option(
            "The input that brings the target, added if the model has none of the name; once for each loss.",
            "--target",
            metavar="INPUT",
        ),
    ] = None
    metric: Annotated[
        list[str] | None,
        _option("accuracy, a loss, or a scalar output; may be repeated.", "--metric", metavar="METRIC"),
    ] = None
    classes_axis: Annotated[int | None, _option("The axis of the output that has the classes.", "--classes-axis")] = (
        None
    )
    ignore_index: Annotated[
        int | None, _option("Samples whose target has this value do not count in the loss.", "--ignore-index")
    ] = None
    freeze: Annotated[
        list[str] | None,
        _option(
            "Parameters or nodes that do not train, such as 'encoder.*'; may be repeated.",
            "--freeze",
            metavar="PATTERN",
        ),
    ] = None
    constant: Annotated[
        list[str] | None,
        _option("Initializers that are constants and no parameters; may be repeated.", "--constant", metavar="PATTERN"),
    ] = None
    lazy: Annotated[
        list[str] | None,
        _option(
            "Embedding tables of which a step updates only the rows that it reads; may be repeated.",
            "--lazy",
            metavar="PATTERN",
        ),
    ] = None
    verify: Annotated[
        bool,
        _option("Reject a file that is known to train differently from its PyTorch module.", "--verify/--no-verify"),
    ] = True
    samples: Annotated[str | None, _option("Name of the batch dimension in the file.", "--samples")] = None
    shape: Annotated[
        list[str] | None,
        _option("An input's shape; may be repeated.", "--shape", metavar="INPUT=batch,3,224,224"),
    ] = None

    def model(self, path: Path) -> Model:
        """The file, read. Raises ArgumentError, OnnxError and its kin."""
        from weft.onnx_model import from_onnx  # most commands build no graph

        shapes = dict(_shape(each) for each in self.shape or ())
        return from_onnx(
            path,
            frozen=self.freeze or (),
            constants=self.constant or (),
            lazy=self.lazy or (),
            verify=self.verify,
            batch=self.samples,
            shapes=shapes,
        )

    def trainable(self, path: Path) -> Trainable:
        """The model with its loss. Raises ArgumentError where none is said, GraphRefusedError and its kin."""
        from weft_graph.losses.comparison import LOSSES  # most commands build no graph
        from weft_graph.losses.with_loss import losses_of

        model = self.model(path)
        if not self.loss:
            scalars = [name for name, value in model.outputs.items() if not value.shape and value.dtype.is_float]
            of_own = f", or --loss {scalars[0]}, which the model computes" if scalars else ""
            raise ArgumentError(f"say what {path} trains by: --loss {', '.join(LOSSES)}{of_own}")
        losses = losses_of(self.loss, self.output or (), self.target or (), self.classes_axis, self.ignore_index)
        return model.with_loss(losses, metrics=self.metric or ())

    @property
    def is_of_a_loss(self) -> bool:
        """Whether anything was said about what the file trains by."""
        return bool(self.loss or self.output or self.target or self.metric)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions(FileOptions):
    """The same, and on what data, with which optimizer and how it trains."""

    data: Annotated[
        str | None,
        _option("The training data: a file of this folder, or of the server's.", "--data", metavar="FILE.npz"),
    ] = None
    column: Annotated[
        list[str] | None,
        _option("The column that feeds an input; may be repeated.", "--column", metavar="INPUT=COLUMN"),
    ] = None
    evaluate: Annotated[
        str | None,
        _option(
            "Rows for evaluation, such as 800:1000; those before them are for training.",
            "--evaluate",
            metavar="FROM:TO",
        ),
    ] = None
    shuffle: Annotated[bool, _option("Shuffle the rows in each epoch.", "--shuffle/--no-shuffle")] = True
    optimizer: Annotated[str | None, _option(f"{', '.join(BY_NAME)}; else the file's own, or sgd.", "--optimizer")] = (
        None
    )
    batch_size: Annotated[
        int | None, _job_option("Samples in a step, over all workers; for an ONNX file 64.", "--batch-size")
    ] = None
    lr: Annotated[float | None, _job_option("The learning rate.", "--lr")] = None
    workers: Annotated[int | None, _job_option("Number of workers; for an ONNX file 1.", "--workers")] = None
    shards: Annotated[int | None, _job_option("Number of shards; one worker needs none.", "--shards")] = None
    seed: Annotated[
        int | None, _job_option("Seed of sample order, dropout and initial values; for an ONNX file 0.", "--seed")
    ] = None
    name: Annotated[str | None, _job_option("The job's name; for an ONNX file its file name.", "--name")] = None

    def job(self, path: Path, trainable: Trainable, **length: int | None) -> JobSpec:
        """The job without its first values. Raises ArgumentError."""
        from weft.submission import job_spec  # most commands build no graph

        data = self._data(path, trainable)
        if not any(length.values()):
            raise ArgumentError(f"say how long {path} trains: --steps or --epochs")
        return job_spec(
            trainable,
            data=data,
            batch_size=self.batch_size,
            optimizer=self._optimizer(trainable),
            workers=self.workers or 1,
            shards=self.shards,
            seed=self.seed or 0,
            name=self.name or _name(path),
            **length,  # type: ignore[arg-type]  # each is a number or None
        )

    def _data(self, path: Path, trainable: Trainable) -> DataSpec:
        inputs = [input_.name for input_ in trainable.graph.inputs]
        if self.data is None:
            raise ArgumentError(f"say what {path} trains on: --data FILE.npz, with columns {', '.join(inputs)}")
        columns = dict(_pair("column", each) for each in self.column or ())
        for name in columns:
            if name not in inputs:
                raise ArgumentError(f"--column {name}=...: the model has no input {name!r}; it has {', '.join(inputs)}")
        return numpy_data(self.data, columns=columns, evaluate=_rows(self.evaluate), shuffle=self.shuffle)

    def _optimizer(self, trainable: Trainable) -> OptimizerSpec:
        """The one that is asked for, else the file's own, else SGD; with the rate that is asked for."""
        lr = {} if self.lr is None else {"lr": self.lr}
        if self.optimizer is None and trainable.optimizer is not None:
            return type(trainable.optimizer)(**{**trainable.optimizer.model_dump(), **lr})
        with checked("--optimizer"):
            return optimizer_of(self.optimizer or "sgd", lr)


def fields_of_a_job(model: ModelOptions, what: str, **length: int | None) -> list[str]:
    """What was said of fields that any job has, as `--set` takes it. Raises ArgumentError as `check_unsaid` does."""
    check_unsaid(model, what, besides=OF_ANY_JOB)
    said = {**length, **{name: getattr(model, name) for name in OF_ANY_JOB}}
    return [f"{name}={value}" for name, value in said.items() if value is not None]


def check_unsaid(model: ModelOptions, what: str, besides: Collection[str] = ()) -> None:
    """Raises ArgumentError for an option of ONNX files where the command is about something else."""
    for field in fields(model):
        value = getattr(model, field.name)
        if field.name not in besides and value not in (field.default, []):
            field_of_job = SET_INSTEAD.get(field.name) if besides else None
            remedy = f"write --set {field_of_job}={value}" if field_of_job else command("submit MODEL.onnx --loss ...")
            raise ArgumentError(f"--{field.name.replace('_', '-')} is for ONNX files, and {what} is not one: {remedy}")


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise ArgumentError(f"--{option} is {text!r}; it should be INPUT=COLUMN")
    return name, value


def _shape(text: str) -> tuple[str, list[int | str]]:
    """`INPUT=batch,3` as a name and dimensions; a single number of an input without any is `INPUT=`."""
    name, equals, dims = text.rpartition("=")
    parts = [part.strip() for part in dims.split(",")] if dims else []
    if not (name and equals) or not all(part.isdecimal() or part.isidentifier() for part in parts):
        raise ArgumentError(
            f"--shape is {text!r}; it should be the dimensions' names or sizes, such as INPUT=batch,3,224,224"
        )
    return name, [int(part) if part.isdecimal() else part for part in parts]


def _rows(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, colon, last = text.partition(":")
    if not (first.isdigit() and colon and last.isdigit()):
        raise ArgumentError(
            f"--evaluate is {text!r}; it should be rows from (included) to (excluded), such as 800:1000"
        )
    return int(first), int(last)


def _name(path: Path) -> str:
    """The file's name as a job's."""
    return re.sub(r"[^A-Za-z0-9_.\-]+", "-", path.stem).strip(".-")[:128] or "model"
