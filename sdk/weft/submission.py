"""From expressions and plain arguments to a job that can be sent."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Never

from weft.api.base import Model
from weft.api.compression import StoreCompressionSpec
from weft.api.data import DataSpec
from weft.api.job import (
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
from weft.arguments import checked, keep_best_of, refuse_unknown, stop_when_of
from weft.data import numpy_data
from weft.errors import ArgumentError
from weft.first_values import FirstValues, from_job_or_upload, id_of
from weft.job_arguments import JobArguments

if TYPE_CHECKING:
    from weft.expression import Expression
    from weft.job_handle import JobHandle
    from weft.optimizer_graph import CustomOptimizer
    from weft.records import Array
    from weft.trainable import Trainable
    from weft_graph.ir import Graph

SLICE_BYTES = Parallelism().slice_bytes


@dataclass(frozen=True, slots=True, eq=False)
class _Trained:
    """A graph, its outputs by what the job makes of them, and first values of its parameters."""

    graph: Graph
    loss: str
    metrics: Mapping[str, str]
    values: Mapping[str, Array] = field(default_factory=dict)
    optimizer: OptimizerSpec | None = None


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
    optimizer: OptimizerSpec | CustomOptimizer | None = None,
    workers: int = 1,
    shards: int | None = None,
    mode: Mode | str = Mode.SYNC,
    update: UpdateBy | str = UpdateBy.SHARDS,
    merge: Merge | str = Merge.SLOT,
    slice_bytes: int = SLICE_BYTES,
    recompute: Recompute | str = Recompute.OFF,
    precision: Precision | str = Precision.FLOAT32,
    clip_norm: float | None = None,
    loss_scale: LossScalingSpec | Mapping[str, Any] | None = None,
    accumulate: int = 1,
    ema: AverageSpec | Mapping[str, Any] | float | None = None,
    evaluate_ema: bool = False,
    compression: StoreCompressionSpec | Mapping[str, Any] | None = None,
    init_from: FirstValues | None = None,
    resume: JobHandle | str | None = None,
    keep_state: bool = False,
    stop_when: StopWhen | Mapping[str, Any] | str | None = None,
    keep_best: KeepBest | Mapping[str, Any] | str | None = None,
    on_nan: Literal["fail", "go_on", "skip"] = "fail",
    max_restarts: int = 10,
    snapshot_every_s: float | None = 60.0,
    seed: int = 0,
    name: str = "job",
    **unknown: Never,
) -> JobSpec:
    """Return the job that `Client.submit` would send; `model_dump_json(indent=2)` makes it a job file.

    `init_from` is a job, or what `Client.upload` returned. Values of a model from PyTorch or ONNX are not in the job:
    `Client.submit` uploads them, or use `Client.upload_values(model.values)`. Raises ArgumentError.
    """
    from weft.optimizer_graph import CustomOptimizer

    refuse_unknown("a job", unknown, JobArguments.__annotations__)
    optimizer = optimizer() if isinstance(optimizer, CustomOptimizer) else optimizer
    if optimizer is not None and not isinstance(optimizer, Model):
        raise ArgumentError(f"optimizer is {optimizer!r}; it should be weft.SGD(...), weft.Adam(...) or the like")
    if (epochs is None) == (steps is None):
        given = "neither" if epochs is None else f"epochs={epochs} and steps={steps}"
        raise ArgumentError(f"give either epochs or steps, how long to train; {given} was given")
    trained = _trained(loss, metrics, outputs, name)
    source = data_of(data)
    from weft_graph.json_form import graph_to_json  # who only watches jobs builds no graph

    with checked():
        run = RunLength(epochs=epochs, steps=steps, evaluate_every=evaluate_every)
        parallelism = Parallelism.model_validate(
            {"workers": workers, "mode": mode, "update": update, "merge": merge, "slice_bytes": slice_bytes}
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
            optimizer=optimizer or trained.optimizer or SGD(),
            run=run,
            parallelism=parallelism,
            recompute=recompute,  # type: ignore[arg-type]  # the model makes the word of a text
            precision=precision,  # type: ignore[arg-type]  # likewise
            clip_norm=clip_norm,
            loss_scale=loss_scale,  # type: ignore[arg-type]  # a mapping becomes the model
            accumulate=accumulate,
            ema={"decay": ema} if isinstance(ema, float) else ema,  # type: ignore[arg-type]  # likewise
            evaluate_ema=evaluate_ema,
            compression=compression,  # type: ignore[arg-type]  # a mapping becomes the model
            init_from=None if init_from is None else from_job_or_upload(init_from),
            resume=id_of(resume),
            keep_state=keep_state,
            stop_when=stop_when_of(stop_when) if isinstance(stop_when, str) else stop_when,  # type: ignore[arg-type]
            keep_best=keep_best_of(keep_best) if isinstance(keep_best, str) else keep_best,  # type: ignore[arg-type]
            on_nan=on_nan,
            max_restarts=max_restarts,
            snapshot_every_s=snapshot_every_s,
            seed=seed,
        )


def first_values(
    loss: Expression | Trainable, metrics: Mapping[str, Expression] | None, outputs: Sequence[Expression]
) -> Mapping[str, Array]:
    """The values that parameters of these bring along, by name."""
    return _trained(loss, metrics, outputs, "job").values


def _trained(
    loss: Expression | Trainable,
    metrics: Mapping[str, Expression] | None,
    outputs: Sequence[Expression],
    name: str,
) -> _Trained:
    """Raises ArgumentError for what is none of these."""
    from weft.collect import collect  # who only watches jobs builds no graph
    from weft.trainable import Trainable

    if isinstance(loss, Trainable):
        if metrics or outputs:
            raise ArgumentError(
                "metrics and outputs of a model are said where its loss is: model.with_loss(..., metrics=...)"
            )
        return _Trained(loss.graph, loss.loss, loss.metrics, loss.values, loss.optimizer)
    metrics = {} if metrics is None else metrics
    _check_expressions(loss, metrics)
    collected = collect((loss, *metrics.values(), *outputs), name)
    named = dict(zip(metrics, collected.outputs[1:], strict=False))
    return _Trained(collected.graph, collected.outputs[0], named, collected.values)


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
    raise ArgumentError(f"data is weft.numpy_data(...) or the path of a .npz file, not {type(data).__name__}")


def _with(data: DataSpec, **fields: Any) -> DataSpec:
    """`data` with other fields, checked. Raises pydantic.ValidationError, which names the field."""
    return DataSpec.model_validate({**data.model_dump(), **fields})
