"""What a job is made of, as keywords: `weft.job_spec` takes them, `Client.submit` passes them on."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict, TypeVar

from weft.api.compression import StoreCompressionSpec
from weft.api.data import DataSpec
from weft.api.job import KeepBest, Merge, Mode, Precision, Recompute, StopWhen, UpdateBy
from weft.api.optimizer import OptimizerSpec
from weft.api.store import AverageSpec, LossScalingSpec
from weft.first_values import FirstValues

if TYPE_CHECKING:
    from weft.expression import Expression
    from weft.job_handle import JobHandle
    from weft.optimizer_graph import CustomOptimizer

F = TypeVar("F", bound=Callable[..., Any])


class TrainingArguments(TypedDict, total=False):
    """The keywords of `weft.job_spec` but for what is trained on what, which `weft.fit` finds out."""

    outputs: Sequence[Expression]
    batch_size: int | None
    epochs: int | None
    steps: int | None
    evaluate_every: int | None
    optimizer: OptimizerSpec | CustomOptimizer | None
    workers: int
    shards: int | None
    mode: Mode | str
    update: UpdateBy | str
    merge: Merge | str
    slice_bytes: int
    recompute: Recompute | str
    precision: Precision | str
    clip_norm: float | None
    loss_scale: LossScalingSpec | Mapping[str, Any] | None
    accumulate: int
    ema: AverageSpec | Mapping[str, Any] | float | None
    evaluate_ema: bool
    compression: StoreCompressionSpec | Mapping[str, Any] | None
    init_from: FirstValues | None
    resume: JobHandle | str | None
    keep_state: bool
    stop_when: StopWhen | Mapping[str, Any] | str | None
    keep_best: KeepBest | Mapping[str, Any] | str | None
    on_nan: Literal["fail", "go_on", "skip"]
    max_restarts: int
    snapshot_every_s: float | None
    seed: int
    name: str


class JobArguments(TrainingArguments, total=False):
    """The keywords of `weft.job_spec`, whose signature has their defaults."""

    metrics: Mapping[str, Expression] | None
    data: Required[DataSpec | str | os.PathLike[str]]


def shown_with_keywords_of(source: Callable[..., Any], but: Collection[str] = ()) -> Callable[[F], F]:
    """Shows a function in `help` with the keywords that it passes on to `source`, and their defaults."""
    keywords = [
        p for p in inspect.signature(source).parameters.values() if p.kind is p.KEYWORD_ONLY and p.name not in but
    ]

    def shown(function: F) -> F:
        own = inspect.signature(function)
        named = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        function.__signature__ = own.replace(parameters=[*named, *keywords])  # type: ignore[attr-defined]
        return function

    return shown
