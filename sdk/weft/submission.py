"""From expressions and plain arguments to a job that can be sent."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.api.base import Model
from weft.api.data import DataSpec
from weft.api.job import JobSpec, Merge, Mode, Parallelism, Recompute, RunLength, UpdateBy
from weft.api.rule import RuleSpec, Sgd
from weft.arguments import checked
from weft.data import numpy_data
from weft.errors import ArgumentError
from weft.first_values import FirstValues, from_job_or_upload

if TYPE_CHECKING:
    from weft.expression import Expression
    from weft.user_rule import UserRule

SLICE_BYTES = Parallelism().slice_bytes


def job_spec(
    loss: Expression,
    *,
    metrics: Mapping[str, Expression] | None = None,
    data: DataSpec | str | os.PathLike[str],
    batch: int | None = None,
    passes: int | None = None,
    steps: int | None = None,
    evaluate_every: int | None = None,
    rule: RuleSpec | UserRule | None = None,
    workers: int = 1,
    shards: int = 1,
    mode: Mode | str = Mode.SYNC,
    update: UpdateBy | str = UpdateBy.SHARDS,
    merge: Merge | str = Merge.SLOT,
    slice_bytes: int = SLICE_BYTES,
    recompute: Recompute | str = Recompute.OFF,
    init_from: FirstValues | None = None,
    keep_state: bool = False,
    seed: int = 0,
    name: str = "job",
) -> JobSpec:
    """The job that `Client.submit` sends for these arguments; its `model_dump_json(indent=2)` is a job file.

    Inputs that `data` has no column for are fed by the column of their own name. `init_from` is a job here, or what
    `Client.upload` gave. Raises ArgumentError.
    """
    from weft.collect import collect  # who only watches jobs builds no graph
    from weft.user_rule import UserRule
    from weft_graph.json_form import graph_to_json

    metrics = {} if metrics is None else metrics
    _check_expressions(loss, metrics)
    rule = rule() if isinstance(rule, UserRule) else rule
    if rule is not None and not isinstance(rule, Model):
        raise ArgumentError(f"rule is {rule!r}; it should be weft.Sgd(...), weft.Adam(...) or the like")
    if (passes is None) == (steps is None):
        given = "neither" if passes is None else f"passes={passes} and steps={steps}"
        raise ArgumentError(f"give either passes or steps, how long to train; {given} was given")
    source = _data(data)
    with checked():
        run = RunLength(passes=passes, steps=steps, evaluate_every=evaluate_every)
        parallelism = Parallelism.model_validate(
            {"workers": workers, "shards": shards, "mode": mode, "update": update, "merge": merge}
            | {"slice_bytes": slice_bytes}
        )
        collected = collect((loss, *metrics.values()), name)
        own = {input_.name: input_.name for input_ in collected.graph.inputs}
        return JobSpec(
            name=name,
            graph=graph_to_json(collected.graph),
            loss=collected.outputs[0],
            metrics=dict(zip(metrics, collected.outputs[1:], strict=True)),
            data=_with(source, columns={**own, **source.columns}, batch=source.batch if batch is None else batch),
            rule=rule or Sgd(),
            run=run,
            parallelism=parallelism,
            recompute=recompute,  # type: ignore[arg-type]  # the model makes the word of a text
            init_from=None if init_from is None else from_job_or_upload(init_from),
            keep_state=keep_state,
            seed=seed,
        )


def _check_expressions(loss: object, metrics: object) -> None:
    from weft.expression import Expression  # who only watches jobs builds no graph

    if not isinstance(loss, Expression):
        raise ArgumentError(f"loss is an expression, such as nn.cross_entropy(scores, y), not {type(loss).__name__}")
    if not isinstance(metrics, Mapping):
        raise ArgumentError(f'metrics are expressions by name, such as {{"accuracy": ...}}, not {metrics!r}')
    for name, metric in metrics.items():
        if not isinstance(metric, Expression):
            raise ArgumentError(f"metric {name!r} is an expression, not {type(metric).__name__}")


def _data(data: object) -> DataSpec:
    if isinstance(data, DataSpec):
        return data
    if isinstance(data, str | os.PathLike):
        return numpy_data(data)
    raise ArgumentError(f"data is weft.numpy_data(...) or the path of a .npz file, not {type(data).__name__}")


def _with(data: DataSpec, **fields: Any) -> DataSpec:
    """`data` with other fields, checked. Raises pydantic.ValidationError, which names the field."""
    return DataSpec.model_validate({**data.model_dump(), **fields})
