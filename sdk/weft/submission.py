"""From expressions and plain arguments to a job that can be sent.

The words that most jobs need are keywords; the others stand in records: `Communication`, `Recovery`, `EMA`. Every
default is said in `weft.api.job`.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Never, Required, TypeAlias, TypedDict, TypeVar, Union, is_typeddict

from weft.api.base import Model
from weft.api.compression import StoreCompressionSpec
from weft.api.data import DataSpec
from weft.api.job import (
    FromJob,
    FromUpload,
    JobSpec,
    KeepBest,
    Merge,
    Mode,
    Parallelism,
    Precision,
    Recompute,
    RunLength,
    StopWhen,
    UpdateBy,
)
from weft.api.optimizer import SGD, OptimizerSpec
from weft.api.store import AverageSpec, LossScalingSpec
from weft.api.values import SAFETENSORS
from weft.arguments import checked, keep_best_of, refuse_unknown, says_its_words, stop_when_of
from weft.data import numpy_data
from weft.errors import ArgumentError
from weft.optimizers import BY_NAME

if TYPE_CHECKING:
    from weft.expression import Expression
    from weft.job_handle import JobHandle
    from weft.optimizer_graph import CustomOptimizer
    from weft.trainable import Trainable

F = TypeVar("F", bound=Callable[..., Any])

Optimizer: TypeAlias = Union[OptimizerSpec, "CustomOptimizer", str, Mapping[str, Any], Callable[..., OptimizerSpec]]
"""`weft.Adam(...)`, `weft.Adam`, or a name: `"adam"`."""

FirstValues: TypeAlias = Union[FromJob, FromUpload, "JobHandle", str, "os.PathLike[str]"]
"""A job's handle or id, an upload, or the path of a safetensors file: a Path, or text with a `/` or `.safetensors`."""


_DEFAULTS: Mapping[str, Any] = {
    name: each.default for model in (JobSpec, Parallelism) for name, each in model.model_fields.items()
}
"""What a job has where nothing is said."""


@says_its_words
@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """How gradients and parameters travel between workers and shards.

    - `mode`: "sync", or "async", which applies each gradient as it arrives.
    - `update`: who runs the optimizer, "shards" or "workers".
    - `merge`: "slot" sums gradients in the order of workers, so results are bit-equal; "arrival" does not.
    - `slice_bytes`: size of the slices that parameters are cut into.
    - `compression`: fewer bytes for gradients, `{"gradients": {"kind": "2bit", "threshold": 0.5}}`.
    """

    mode: Mode | str = _DEFAULTS["mode"]
    update: UpdateBy | str = _DEFAULTS["update"]
    merge: Merge | str = _DEFAULTS["merge"]
    slice_bytes: int = _DEFAULTS["slice_bytes"]
    compression: StoreCompressionSpec | Mapping[str, Any] | None = _DEFAULTS["compression"]


@says_its_words
@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What a job survives, and what is saved of it.

    - `max_restarts`: how often the job may recover from a lost process.
    - `snapshot_every_s`: seconds between two snapshots; None takes none.
    - `on_nan`: "fail"; "skip" leaves out steps whose gradient is not finite; "go_on" ignores it.
    - `keep_state`: whether the optimizer's state is kept in the result.
    """

    max_restarts: int = _DEFAULTS["max_restarts"]
    snapshot_every_s: float | None = _DEFAULTS["snapshot_every_s"]
    on_nan: Literal["fail", "go_on", "skip"] = _DEFAULTS["on_nan"]
    keep_state: bool = _DEFAULTS["keep_state"]


@says_its_words
@dataclass(frozen=True, slots=True)
class EMA:
    """Averages of the parameters over the steps: exponential with `decay`, plain without.

    The first `start` steps do not count. With `evaluate`, evaluations use the averages.
    """

    decay: float | None = None
    start: int = AverageSpec.model_fields["start"].default
    evaluate: bool = _DEFAULTS["evaluate_ema"]


COMMUNICATION, RECOVERY = Communication(), Recovery()


class TrainingArguments(TypedDict, total=False):
    """The keywords of `job_spec` but for what is trained on what, which `weft.fit` finds out."""

    outputs: Sequence[Expression]
    batch_size: int | None
    epochs: int | None
    steps: int | None
    evaluate_every: int | None
    optimizer: Optimizer | None
    workers: int
    shards: int | None
    communication: Communication
    recovery: Recovery
    recompute: Recompute | str
    precision: Precision | str
    allow_tf32: bool
    clip_norm: float | None
    loss_scale: LossScalingSpec | Mapping[str, Any] | None
    accumulate: int
    ema: EMA | float | None
    init_from: FirstValues | None
    resume: JobHandle | str | None
    stop_when: StopWhen | Mapping[str, Any] | str | None
    keep_best: KeepBest | Mapping[str, Any] | str | None
    seed: int
    name: str


class JobArguments(TrainingArguments, total=False):
    """The keywords of `job_spec`, whose signature has their defaults."""

    metrics: Mapping[str, Expression] | None
    data: Required[DataSpec | str | os.PathLike[str]]


_HOMES: Mapping[str, str] = {
    **{each.name: f"communication=weft.Communication({each.name}=...)" for each in fields(Communication)},
    **{each.name: f"recovery=weft.Recovery({each.name}=...)" for each in fields(Recovery)},
    "evaluate_ema": "ema=weft.EMA(0.999, evaluate=True)",
    **{word: f"optimizer=weft.SGD({word}=...)" for word in ("lr", "momentum", "weight_decay", "multipliers")},
    **{word: f"optimizer=weft.Adam({word}=...)" for word in ("betas", "eps")},
    **{word: f"data=weft.numpy_data(path, {word}=...)" for word in ("columns", "train", "evaluate", "shuffle")},
    "loss": "it as the first argument",
}
"""What to write for words that are of no job as a whole."""


def check_words(
    owner: str, given: Iterable[str], more: Collection[str] = (), homes: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Raises ArgumentError for a word that a job has not; `more` are those of the owner alone, as are `homes`."""
    known = [*more, *JobArguments.__annotations__, *TrainingArguments.__annotations__]
    try:
        refuse_unknown(owner, given, known, {**_HOMES, **homes})
    except ArgumentError as error:
        own = type(given.get("optimizer")).__name__ if isinstance(given, Mapping) else ""
        if own.lower() not in BY_NAME:
            raise
        said = re.sub(r"weft\.SGD\((?=lr=|weight_decay=|multipliers=)", f"weft.{own}(", str(error))
        raise ArgumentError(said) from None


def shown_with_keywords_of(source: Any, but: Collection[str] = ()) -> Callable[[F], F]:
    """Shows a function in `help` with the keywords that it passes on to `source`, a function, and their defaults; or
    with those of a typed dictionary, which are None where they are left out."""
    if is_typeddict(source):
        known = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=getattr(kind, "__forward_arg__", kind)
            )
            for name, kind in source.__annotations__.items()
        ]
    else:
        known = [p for p in inspect.signature(source).parameters.values() if p.kind is p.KEYWORD_ONLY]
    keywords = [p for p in known if p.name not in but]

    def shown(function: F) -> F:
        own = inspect.signature(function)
        named = [p for p in own.parameters.values() if p.kind not in {p.VAR_KEYWORD, p.VAR_POSITIONAL}]
        function.__signature__ = own.replace(parameters=[*named, *keywords])  # type: ignore[attr-defined]
        return function

    return shown


def job_spec(
    loss: Expression | Trainable,
    *,
    metrics: Mapping[str, Expression] | None = None,
    outputs: Sequence[Expression] = (),
    data: DataSpec | str | os.PathLike[str],
    batch_size: int | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    evaluate_every: int | None = None,
    optimizer: Optimizer | None = None,
    workers: int = _DEFAULTS["workers"],
    shards: int | None = None,
    precision: Precision | str = _DEFAULTS["precision"],
    allow_tf32: bool = _DEFAULTS["allow_tf32"],
    clip_norm: float | None = None,
    accumulate: int = _DEFAULTS["accumulate"],
    recompute: Recompute | str = _DEFAULTS["recompute"],
    loss_scale: LossScalingSpec | Mapping[str, Any] | None = None,
    ema: EMA | float | None = None,
    stop_when: StopWhen | Mapping[str, Any] | str | None = None,
    keep_best: KeepBest | Mapping[str, Any] | str | None = None,
    init_from: FirstValues | None = None,
    resume: JobHandle | str | None = None,
    communication: Communication = COMMUNICATION,
    recovery: Recovery = RECOVERY,
    seed: int = _DEFAULTS["seed"],
    name: str = _DEFAULTS["name"],
    **unknown: Never,
) -> JobSpec:
    """Return the job that `Client.submit` would send; `model_dump_json(indent=2)` makes it a job file.

    `init_from` is a job, or what `Client.upload` returned. Values of a model from PyTorch or ONNX are not in the job:
    `Client.submit` uploads them, or use `Client.upload_values(model.values)`. Raises ArgumentError.
    """
    check_words("job_spec", unknown)
    if isinstance(ema, int | float):
        ema = EMA(ema)
    for record, kind in ((communication, Communication), (recovery, Recovery), (EMA() if ema is None else ema, EMA)):
        if not isinstance(record, kind):
            raise ArgumentError(f"{kind.__name__.lower()} is {record!r}; it should be weft.{kind.__name__}(...)")
    if (epochs is None) == (steps is None):
        given = "neither" if epochs is None else f"both epochs={epochs} and steps={steps}"
        verb = "was" if epochs is None else "were"
        raise ArgumentError(f"give either epochs or steps, how long to train; {given} {verb} given")
    trained = trainable_of(loss, metrics, outputs, name)
    source = data_of(data)
    from weft_graph.json_form import graph_to_json  # who only watches jobs builds no graph

    with checked():
        run = RunLength(epochs=epochs, steps=steps, evaluate_every=evaluate_every)
        parallelism = Parallelism.model_validate(
            {"workers": workers, **_of(communication, but="compression")}
            | ({} if shards is None else {"shards": shards})
        )
        own = {input_.name: input_.name for input_ in trained.graph.inputs}
        return JobSpec(
            name=name,
            graph=graph_to_json(trained.graph),
            loss=trained.loss,
            metrics=dict(trained.metrics),
            data=_with(
                source,
                columns={**own, **source.columns},
                batch_size=source.batch_size if batch_size is None else batch_size,
            ),
            optimizer=trained.optimizer or SGD() if optimizer is None else optimizer_given(optimizer),
            run=run,
            parallelism=parallelism,
            recompute=recompute,  # type: ignore[arg-type]  # the model makes the word of a text
            precision=precision,  # type: ignore[arg-type]  # likewise
            allow_tf32=allow_tf32,
            clip_norm=clip_norm,
            loss_scale=loss_scale,  # type: ignore[arg-type]  # a mapping becomes the model
            accumulate=accumulate,
            ema=None if ema is None else _of(ema, but="evaluate"),  # type: ignore[arg-type]  # likewise
            evaluate_ema=ema is not None and ema.evaluate,
            compression=communication.compression,  # type: ignore[arg-type]  # a mapping becomes the model
            init_from=None if init_from is None else from_job_or_upload(init_from),
            resume=id_of(resume),
            stop_when=stop_when_of(stop_when) if isinstance(stop_when, str) else stop_when,  # type: ignore[arg-type]
            keep_best=keep_best_of(keep_best) if isinstance(keep_best, str) else keep_best,  # type: ignore[arg-type]
            **_of(recovery),
            seed=seed,
        )


def optimizer_given(given: Optimizer) -> Any:
    """What the job's document takes as its optimizer. Raises ArgumentError for one that is not weft's."""
    from weft.optimizer_graph import CustomOptimizer

    if isinstance(given, Model | Mapping | str):
        return given
    if isinstance(given, CustomOptimizer) or any(given is make for make in BY_NAME.values()):
        return given()
    kind = given if isinstance(given, type) else type(given)
    write = f"weft.{kind.__name__}(...)" if kind.__name__.lower() in BY_NAME else "weft.SGD(...), weft.Adam(...)"
    raise ArgumentError(f"optimizer is of {kind.__module__}.{kind.__name__}; write {write}, or a name such as 'adam'")


def trainable_of(
    loss: Expression | Trainable,
    metrics: Mapping[str, Expression] | None,
    outputs: Sequence[Expression],
    name: str,
) -> Trainable:
    """The graph of these, with the values that its parameters bring along. Raises ArgumentError for what is none."""
    from weft.collect import collect  # who only watches jobs builds no graph
    from weft.trainable import Trainable
    from weft_graph.losses.with_loss import WithLoss

    if isinstance(loss, Trainable):
        if metrics or outputs:
            raise ArgumentError(
                "metrics and outputs of a model are said where its loss is: model.with_loss(..., metrics=...)"
            )
        return loss
    metrics = {} if metrics is None else metrics
    _check_expressions(loss, metrics)
    made = collect((loss, *metrics.values(), *outputs), name)
    named = dict(zip(metrics, made.outputs[1:], strict=False))
    return Trainable(WithLoss(made.graph, made.outputs[0], named), made.values)


def _check_expressions(loss: object, metrics: object) -> None:
    from weft.expression import Expression  # who only watches jobs builds no graph
    from weft.model import Model as ReadModel

    if isinstance(loss, ReadModel):
        raise ArgumentError(
            "this model has no loss yet: say what it trains by, such as model.with_loss('cross_entropy')"
        )
    if not isinstance(loss, Expression):
        raise ArgumentError(f"loss is an expression, such as nn.cross_entropy(scores, y), not {type(loss).__name__}")
    if not isinstance(metrics, Mapping):
        raise ArgumentError(f'metrics are expressions by name, such as {{"accuracy": ...}}, not {metrics!r}')
    for name, metric in metrics.items():
        if not isinstance(metric, Expression):
            raise ArgumentError(f"metric {name!r} is an expression, not {type(metric).__name__}")


def data_of(data: object) -> DataSpec:
    """What a script gives as data. Raises ArgumentError."""
    if isinstance(data, DataSpec):
        return data
    if isinstance(data, str | os.PathLike):
        return numpy_data(data)
    raise ArgumentError(
        f"data is weft.numpy_data(...) or the path of a .npz file, not {type(data).__name__}: save its arrays with "
        "numpy.savez('data.npz', x=x, y=y)"
    )


def _with(data: DataSpec, **fields: Any) -> DataSpec:
    """`data` with other fields, checked. Raises pydantic.ValidationError, which names the field."""
    return DataSpec.model_validate({**data.model_dump(), **fields})


def _of(record: Any, but: str = "") -> dict[str, Any]:
    """The record's fields as the job's document has them."""
    return {each.name: getattr(record, each.name) for each in fields(record) if each.name != but}


def file_of(first: FirstValues | None) -> Path | None:
    """The file that is meant, if it is one."""
    if isinstance(first, os.PathLike):
        return Path(first)
    return Path(first) if isinstance(first, str) and (os.sep in first or first.endswith(SAFETENSORS)) else None


def from_job_or_upload(first: FirstValues) -> FromJob | FromUpload:
    """What the job's document says. Raises ArgumentError for a file, which is uploaded first, and for anything else."""
    if isinstance(first, FromJob | FromUpload):
        return first
    file = file_of(first)
    if file is not None:
        raise ArgumentError(f"init_from is the file {file}; upload it first: init_from=client.upload({str(file)!r})")
    job = id_of(first)
    if job is None:
        raise ArgumentError(f"init_from is {first!r}; it should be a job, its id, or the path of a safetensors file")
    return FromJob(job=job)


def id_of(job: object) -> str | None:
    """The id of a job: of its handle, or what is one; None for anything else."""
    found = job if isinstance(job, str) else getattr(job, "id", None)
    return found if isinstance(found, str) else None
