"""What a job's data, placement and options of training are to its graph, and what does not fit. Pure.

Pointers lead into the job's JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weft.api.data import DataSpec, Rows
from weft.api.job import JobSpec, Mode, Precision, UpdateBy
from weft.api.problem import FieldError
from weft.api.store import CommitSpec, LossScalingSpec
from weft_data.source import Description
from weft_graph.ir import Graph, Input
from weft_graph.json_place import escape_token
from weft_graph.passes import draft
from weft_graph.passes.places import place_of
from weft_graph.rules.largest import out_of_range
from weft_graph.spelling import did_you_mean
from weft_graph.types import BATCH, DType
from weft_server.planning.rule_planning import RulePlan
from weft_server.refusals import listed

OF_COMMIT = ("gradient_norm", "loss_scale", "skipped_steps")
"""Metrics of jobs whose steps are clipped, scaled or skipped, beside those that the job names."""
_WIDER = "make it float32 and set `precision`"
_PLACEMENT = "/parallelism/placement"


def options_of(spec: JobSpec, rule: RulePlan, dims: Mapping[str, int]) -> draft.Options:
    """The job's options; `rule` is the job's, `dims` are the sizes of a worker's batch, where choices go by them."""
    placement = dict(spec.parallelism.placement)
    return draft.Options(
        placement=placement,
        recompute=draft.Recompute(spec.recompute.value),
        precision=draft.Precision(spec.precision.value),
        dims=dict(dims),
        whole_rule=rule.whole,
    )


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
        detail = (
            f"a worker has {samples} samples of a step, which cannot be computed in {spec.accumulate} parts: give at "
            f"most {samples}, or a larger batch_size"
        )
        yield FieldError(pointer="/accumulate", detail=detail)
    yield from _average_errors(spec, graph)
    commit = commit_of(spec)
    if commit is None:
        return
    if (why := out_of_range(spec.clip_norm or 0.0, "float32")) is not None:
        yield FieldError(pointer="/clip_norm", detail=f"{spec.clip_norm:g} {why.replace('give 0, or', 'give')}")
    for name in sorted(set(OF_COMMIT) & spec.metrics.keys()):
        detail = f"{name!r} is told of a job whose steps are clipped, scaled or skipped; give another name"
        yield FieldError(pointer=f"/metrics/{name}", detail=detail)
    scaled = "/loss_scale" if spec.loss_scale is not None else "/precision"
    if commit.loss_scaling is None and commit.skip:
        scaled = "/on_nan"
    pointer = "/clip_norm" if spec.clip_norm is not None else scaled
    if spec.parallelism.mode is not Mode.SYNC:
        detail = (
            "it needs the gradient of all workers at each step, which async mode does not have: leave it out, or use "
            "sync mode"
        )
        yield FieldError(pointer=pointer, detail=detail)
    if commit.skips and spec.parallelism.update is UpdateBy.WORKERS:
        detail = (
            "a step whose gradient overflows is skipped by the shards; workers that update cannot skip it: leave "
            'it or update="workers" out'
        )
        yield FieldError(pointer=scaled, detail=detail)
    if commit.loss_scaling is None:
        return
    for parameter in graph.parameters:
        if parameter.trainable and parameter.type.dtype is DType.FLOAT16:
            detail = (
                f"parameter {parameter.name!r} is float16: its gradient cannot be divided by a loss scale; {_WIDER}"
            )
            yield FieldError(pointer=scaled, detail=detail, node=parameter.name)


def _average_errors(spec: JobSpec, graph: Graph) -> Iterator[FieldError]:
    if spec.ema is None:
        if spec.evaluate_ema:
            yield FieldError(pointer="/evaluate_ema", detail="the job keeps no averages; set `ema`")
        return
    if spec.parallelism.update is UpdateBy.WORKERS:
        detail = (
            "averages are kept by the shards, where the optimizer runs; workers that update keep none: leave "
            '`ema` or update="workers" out'
        )
        yield FieldError(pointer="/ema", detail=detail)
    for parameter in graph.parameters:
        if parameter.trainable and parameter.type.dtype is DType.FLOAT16:
            detail = f"parameter {parameter.name!r} is float16, too few digits for an average of many steps; {_WIDER}"
            yield FieldError(pointer="/ema", detail=detail, node=parameter.name)


def placement_errors(spec: JobSpec, graph: Graph) -> Iterator[FieldError]:
    """What is wrong with the job's placement; nothing where it has none."""
    placement = spec.parallelism.placement
    if not placement:
        return
    groups = dict.fromkeys(node.group for node in graph.nodes if node.group)
    for group in placement:
        if group not in groups:
            detail = f"no node of the graph is in group {group!r}; there are {listed(groups)}"
            yield FieldError(pointer=f"{_PLACEMENT}/{escape_token(group)}", detail=detail)
    for index, node in enumerate(graph.nodes):
        if node.group and node.group not in placement:
            detail = f"node {node.name!r} is in group {node.group!r}, which /parallelism/placement gives no place"
            yield FieldError(pointer=f"/graph/nodes/{index}/group", detail=detail, node=node.name)
    places = dict.fromkeys(place_of(text) for text in placement.values())
    if len(places) > 1 or any(place.stage for place in places):
        detail = (
            f"groups are at {listed(map(str, places))}, and a worker computes all of a step on the one device of its "
            "settings; give every group the same place, of stage 0"
        )
        yield FieldError(pointer=_PLACEMENT, detail=detail)


def column_errors(data: DataSpec, graph: Graph, source: Description) -> Iterator[FieldError]:
    inputs = {each.name: (index, each) for index, each in enumerate(graph.inputs)}
    for name in data.columns.keys() - inputs.keys():
        detail = f"the graph has no input {name!r}; it has {listed(inputs)}{did_you_mean(name, inputs)}"
        yield FieldError(pointer=f"/data/columns/{escape_token(name)}", detail=detail)
    dims: dict[str, tuple[int, str]] = {}
    for name, (index, given) in inputs.items():
        if name not in data.columns:
            yield FieldError(
                pointer="/data/columns", detail=f"no column feeds the model's input {name!r}: name one", node=name
            )
        elif given.type.rank == 0 or given.type.shape[0] != BATCH:
            detail = (
                f"input {name!r} is {given.type}: its first dimension has to be {BATCH!r}, the samples of a step, "
                "whose number varies; declare it so (of a module, from_torch without dynamic=False; of a file, --shape)"
            )
            yield FieldError(pointer=f"/graph/inputs/{index}/shape", detail=detail, node=name)
        else:
            yield from _fit_errors(data.columns[name], given, source, dims)


def _fit_errors(
    column_name: str, given: Input, source: Description, dims: dict[str, tuple[int, str]]
) -> Iterator[FieldError]:
    pointer = f"/data/columns/{escape_token(given.name)}"
    column = source.column(column_name)
    if column is None:
        names = [each.name for each in source.columns]
        detail = f"the source has no column {column_name!r}; it has {listed(names)}{did_you_mean(column_name, names)}"
        yield FieldError(pointer=pointer, detail=detail, node=given.name)
        return
    if column.dtype != given.type.dtype:
        wanted_dtype = given.type.dtype
        detail = (
            f"column {column_name!r} is {column.dtype} and input {given.name!r} is {wanted_dtype}: "
            f"save the column with .astype({wanted_dtype.value!r})"
        )
        if len(column.row_shape) == 1 and not given.type.shape[1:]:
            detail = f"{detail}, and one of one-hot rows with .argmax(axis=1)"
        yield FieldError(pointer=pointer, detail=detail, node=given.name)
    wanted = given.type.shape[1:]
    fits = len(wanted) == len(column.row_shape) and all(
        there == dims.setdefault(asked, (there, given.name))[0] if isinstance(asked, str) else there == asked
        for asked, there in zip(wanted, column.row_shape, strict=True)
    )
    if not fits:
        known = "".join(f"; {dim!r} is {size} in input {by!r}" for dim, (size, by) in dims.items() if dim in wanted)
        detail = (
            f"a row of column {column_name!r} has shape {_shape(column.row_shape)} and a sample of input "
            f"{given.name!r} has {_shape(wanted)}{known}: reshape the column, or declare the input so"
        )
        yield FieldError(pointer=pointer, detail=detail, node=given.name)


def row_errors(spec: JobSpec, source: Description) -> Iterator[FieldError]:
    data = spec.data
    for name, rows in (("train", data.train), ("evaluate", data.evaluate)):
        if rows is not None and rows.stop > source.rows:
            detail = (
                f"rows {rows.start} to {rows.stop} are asked for, and the data has {source.rows} rows: end at "
                f"{source.rows} or before"
            )
            yield FieldError(pointer=f"/data/{name}/stop", detail=detail)
    train = data.train or Rows(start=0, stop=source.rows)
    there = min(train.stop, source.rows) - train.start
    if data.batch_size > there > 0:
        detail = f"a batch of {data.batch_size} samples is more than the {there} rows to train on: give at most {there}"
        yield FieldError(pointer="/data/batch_size", detail=detail)
    held_out = data.evaluate
    if held_out is not None and held_out.start < train.stop and train.start < held_out.stop:
        left_out = "" if data.train else " (all rows, as train is left out)"
        detail = (
            f"evaluation rows {held_out.start} to {held_out.stop} overlap with training rows "
            f"{train.start} to {train.stop}{left_out}: give rows that do not"
        )
        yield FieldError(pointer="/data/evaluate", detail=detail)
    if held_out is None and spec.run.evaluate_every is not None:
        detail = "there is nothing to evaluate on: give data.evaluate rows, or leave evaluate_every out"
        yield FieldError(pointer="/run/evaluate_every", detail=detail)


def _shape(dims: tuple[int | str, ...]) -> str:
    return f"[{', '.join(map(str, dims))}]"
