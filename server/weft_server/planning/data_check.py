"""Whether a source fits a graph: columns against inputs, rows against the source. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from weft.api.data import DataSpec, Rows
from weft.api.job import JobSpec
from weft.api.problem import FieldError
from weft_data.source import Description
from weft_graph.ir import Graph, Input
from weft_graph.json_place import escape_token
from weft_graph.spelling import did_you_mean
from weft_graph.types import BATCH

MOST_NAMES = 20
"""What a message lists of names; an answer's size does not grow with the graph's."""


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
            detail = f"input {name!r} is {given.type}: its first dimension has to be {BATCH!r}, the samples of a step"
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
            detail = f"rows {rows.start} to {rows.stop} of a source that has {source.rows} rows"
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
            f"{train.start} to {train.stop}{left_out}"
        )
        yield FieldError(pointer="/data/evaluate", detail=detail)
    if held_out is None and spec.run.evaluate_every is not None:
        detail = "there is nothing to evaluate on: data.evaluate is left out"
        yield FieldError(pointer="/run/evaluate_every", detail=detail)


def _shape(dims: tuple[int | str, ...]) -> str:
    return f"[{', '.join(map(str, dims))}]"


def listed(names: Iterable[str]) -> str:
    """The names in quotes, the first few of them where there are many."""
    all_names = list(names)
    shown = ", ".join(map(repr, all_names[:MOST_NAMES]))
    return f"{shown} and {len(all_names) - MOST_NAMES} more" if len(all_names) > MOST_NAMES else shown
