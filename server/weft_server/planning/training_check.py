"""Whether a job's options of training fit each other and its parameters. Pure. Pointers lead into the job's JSON."""

from __future__ import annotations

from collections.abc import Iterator

from weft.api.job import JobSpec, Mode, Precision, UpdateBy
from weft.api.problem import FieldError
from weft.api.store import CommitSpec, LossScalingSpec
from weft_graph.ir import Graph
from weft_graph.types import DType


def commit_of(spec: JobSpec) -> CommitSpec | None:
    """What the job's slots agree on at each step, if anything: a step in float16 is scaled unless said otherwise."""
    scaling = spec.loss_scale or (LossScalingSpec() if spec.precision is Precision.FLOAT16 else None)
    skip = spec.on_nan == "skip"
    if spec.clip_norm is None and scaling is None and not skip:
        return None
    return CommitSpec(clip_norm=spec.clip_norm, loss_scaling=scaling, skip=skip)


def training_errors(spec: JobSpec, graph: Graph) -> Iterator[FieldError]:
    """Everything that is wrong with precision, clipping, loss scaling and accumulation."""
    samples = -(-spec.data.batch_size // spec.parallelism.workers)
    if spec.accumulate > samples:
        detail = f"a worker has {samples} samples of a step, which cannot be computed in {spec.accumulate} parts"
        yield FieldError(pointer="/accumulate", detail=detail)
    yield from _average_errors(spec, graph)
    commit = commit_of(spec)
    if commit is None:
        return
    for name in sorted({"gradient_norm", "loss_scale", "skipped_steps"} & spec.metrics.keys()):
        detail = f"{name!r} is told of a job whose steps are clipped, scaled or skipped; give another name"
        yield FieldError(pointer=f"/metrics/{name}", detail=detail)
    scaled = "/loss_scale" if spec.loss_scale is not None else "/precision"
    if commit.loss_scaling is None and commit.skip:
        scaled = "/on_nan"
    pointer = "/clip_norm" if spec.clip_norm is not None else scaled
    if spec.parallelism.mode is not Mode.SYNC:
        detail = "all workers agree on the gradient of a step before it is applied, which there is in sync mode only"
        yield FieldError(pointer=pointer, detail=detail)
    if commit.skips and spec.parallelism.update is UpdateBy.WORKERS:
        detail = "a step whose gradient overflows is skipped by the shards; workers that update cannot skip it"
        yield FieldError(pointer=scaled, detail=detail)
    if commit.loss_scaling is None:
        return
    for parameter in graph.parameters:
        if parameter.trainable and parameter.type.dtype is DType.FLOAT16:
            detail = f"parameter {parameter.name!r} is float16: its gradient cannot be divided by a loss scale"
            yield FieldError(pointer=scaled, detail=detail, node=parameter.name)


def _average_errors(spec: JobSpec, graph: Graph) -> Iterator[FieldError]:
    if spec.ema is None:
        if spec.evaluate_ema:
            yield FieldError(pointer="/evaluate_ema", detail="the job keeps no averages; set `ema`")
        return
    if spec.parallelism.update is UpdateBy.WORKERS:
        detail = "averages are kept by the shards, where the optimizer runs; workers that update keep none"
        yield FieldError(pointer="/ema", detail=detail)
    for parameter in graph.parameters:
        if parameter.trainable and parameter.type.dtype is DType.FLOAT16:
            detail = f"parameter {parameter.name!r} is float16, which has too few digits for an average of many steps"
            yield FieldError(pointer="/ema", detail=detail, node=parameter.name)
