"""Whether a submitted job can run: a plan, or everything that is wrong with it.

A pointer leads into the job's JSON; `node` names the graph's node or value that is meant. All of it is pure but
`read_and_check` and `describe`, which open the source, and so block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path

import numpy as np

from weft.api.data import DataSpec
from weft.api.job import JobSpec, Mode, UpdateBy
from weft.api.problem import FieldError
from weft.api.store import gradient_key
from weft.api.values import STATE
from weft_data.errors import DataError
from weft_data.numpy_source import open_source
from weft_data.source import Description
from weft_graph.check import problems
from weft_graph.convert import convert
from weft_graph.errors import GraphError
from weft_graph.ir import Graph
from weft_graph.json_form import graph_from_json
from weft_graph.json_place import escape_token
from weft_graph.rules.schedule import MOST_STEPS
from weft_graph.spelling import did_you_mean
from weft_graph.types import BATCH, DType
from weft_server.forks import waiting_for
from weft_server.planning.estimate import Bounds, memory_errors, process_memory, step_peaks
from weft_server.planning.options import column_errors, options_of, placement_errors, row_errors, training_errors
from weft_server.planning.plan import JobPlan, dims_of, nbytes, plan_of
from weft_server.planning.rule_check import read_rule, rule_errors
from weft_server.refusals import JobRefusedError, listed

MOST_ERRORS = 50
"""What one answer lists; who has more wrong than that mends the first ones first."""
SAFETENSORS_METADATA = "__metadata__"
MOST_SLICES = 200_000
"""Of one job: each is an object on its shard, which other jobs share, and is counted by every worker at every step."""
MOST_ROW_BYTES = 1 << 22
"""Of a row of a table: a shard cuts no row, and works for other jobs too."""
_NO_EVALUATION = (
    "it needs evaluations: give the data rows for them, such as evaluate=(800, 1000) or --evaluate 800:1000"
)


def read_and_check(spec: JobSpec, roots: Sequence[Path] | None, bounds: Bounds) -> JobPlan:
    """The plan of a submitted job. Raises JobRefusedError with what is wrong with graph and source, both looked at."""
    errors: list[FieldError] = []
    with _gathered(errors):
        graph = read_graph(spec)
    with _gathered(errors):
        source = describe(spec.data, roots)
    if errors:
        raise JobRefusedError(errors)
    return check(spec, graph, source, bounds)


def describe(data: DataSpec, roots: Sequence[Path] | None) -> Description:
    """What the source holds of the columns asked for. Raises JobRefusedError."""
    try:
        with waiting_for(f"the data source {data.source.path}"):
            source = open_source(data.source.type, data.source.path, roots=roots, columns=list(data.columns.values()))
            try:
                return source.describe()
            finally:
                source.close()
    except DataError as error:
        raise JobRefusedError(_data_errors(error, data)) from error


def _data_errors(error: DataError, data: DataSpec) -> list[FieldError]:
    """At the inputs that the column feeds, or at the source where it is not about a column."""
    fed = [name for name, column in data.columns.items() if column == error.column]
    if not fed:
        return [FieldError(pointer="/data/source/path", detail=error.message)]
    return [FieldError(pointer=f"/data/columns/{escape_token(name)}", detail=error.message, node=name) for name in fed]


@contextmanager
def _gathered(errors: list[FieldError]) -> Iterator[None]:
    try:
        yield
    except JobRefusedError as error:
        errors += error.errors


def read_graph(spec: JobSpec) -> Graph:
    """The submitted graph. Raises JobRefusedError with everything that is not legal about it."""
    try:
        graph = graph_from_json(spec.graph)
    except GraphError as error:
        raise JobRefusedError([graph_error(error)]) from error
    found: list[FieldError] = []
    for problem in problems(graph):
        found.append(graph_error(problem))
        if len(found) == MOST_ERRORS:
            break
    if found:
        raise JobRefusedError(found)
    return graph


def check(spec: JobSpec, graph: Graph, source: Description, bounds: Bounds) -> JobPlan:
    """The plan of a job on that source. Raises JobRefusedError."""
    found = chain(
        _name_errors(spec, graph),
        first_value_errors(graph),
        _mode_errors(spec),
        placement_errors(spec, graph),
        training_errors(spec, graph),
        _output_errors(spec, graph),
        column_errors(spec.data, graph, source),
        row_errors(spec, source),
    )
    errors = list(islice(found, MOST_ERRORS))
    if errors:
        raise JobRefusedError(errors)
    rule = read_rule(spec.optimizer)
    try:
        at_once = -(-spec.data.batch_size // (spec.parallelism.workers * spec.accumulate))
        dims = {**dims_of(spec, graph.inputs, source), BATCH: at_once}
        options = options_of(spec, rule, dims)
        programs = convert(graph, loss=spec.loss, metrics=spec.metrics, options=options)
        wrong = list(islice(rule_errors(rule, programs.keys), MOST_ERRORS))
        if wrong:
            raise JobRefusedError(wrong)
        plan = plan_of(spec, rule, programs, source)
        peaks = step_peaks(plan, programs)
        plan = plan.model_copy(update=process_memory(plan, peaks))
        errors = [
            *_length_errors(spec, plan),
            *_stop_errors(spec),
            *_slice_errors(plan),
            *memory_errors(plan, peaks, bounds),
        ]
    except GraphError as error:
        raise JobRefusedError([graph_error(error)]) from error
    if errors:
        raise JobRefusedError(errors)
    return plan


def graph_error(error: GraphError) -> FieldError:
    """The same with a pointer into the job."""
    return FieldError(pointer=f"/graph{error.pointer}", detail=error.message, node=error.node)


def _mode_errors(spec: JobSpec) -> Iterator[FieldError]:
    parallelism = spec.parallelism
    if parallelism.update is UpdateBy.WORKERS and parallelism.mode is not Mode.SYNC:
        detail = (
            "workers update by the merged gradient of a step, which async mode does not have: leave it out, or use "
            "sync mode"
        )
        yield FieldError(pointer="/parallelism/update", detail=detail)
    if spec.compression is not None and not parallelism.shards:
        detail = "nothing travels in a job without shards: leave it out, or give parallelism.shards, at least 1"
        yield FieldError(pointer="/compression", detail=detail)


def _name_errors(spec: JobSpec, graph: Graph) -> Iterator[FieldError]:
    names = {parameter.name for parameter in graph.parameters}
    for index, parameter in enumerate(graph.parameters):
        if parameter.name.startswith(STATE):
            detail = f"{parameter.name!r} begins like the optimizer's state in files, {STATE!r}; give it another name"
            yield FieldError(pointer=f"/graph/parameters/{index}/name", detail=detail, node=parameter.name)
        if spec.parallelism.update is UpdateBy.WORKERS and gradient_key(parameter.name) in names:
            taken = gradient_key(parameter.name)
            detail = (
                f"where workers update, {taken!r} is the merged gradient of {parameter.name!r}: no parameter's name"
            )
            yield FieldError(pointer=f"/graph/parameters/{index}/name", detail=detail, node=taken)
        if parameter.name == SAFETENSORS_METADATA:
            detail = (
                f"{parameter.name!r} has a meaning of its own in safetensors files; give the parameter another name"
            )
            yield FieldError(pointer=f"/graph/parameters/{index}/name", detail=detail, node=parameter.name)


def _output_errors(spec: JobSpec, graph: Graph) -> Iterator[FieldError]:
    wanted = {"/loss": spec.loss, **{f"/metrics/{escape_token(name)}": value for name, value in spec.metrics.items()}}
    outputs = frozenset(graph.outputs)
    for pointer, value in wanted.items():
        if value not in outputs:
            known = listed(graph.outputs)
            detail = f"{value!r} is no output of the graph; it has {known}{did_you_mean(value, graph.outputs)}"
            yield FieldError(pointer=pointer, detail=detail, node=value)
    if spec.metrics.get("loss", spec.loss) != spec.loss:
        detail = f"the metric 'loss' is always the loss, {spec.loss!r}; give {spec.metrics['loss']!r} another name"
        yield FieldError(pointer="/metrics/loss", detail=detail)


def _length_errors(spec: JobSpec, plan: JobPlan) -> Iterator[FieldError]:
    if plan.steps > MOST_STEPS:
        field = "steps" if spec.run.steps else "epochs"
        yield FieldError(pointer=f"/run/{field}", detail=f"{plan.steps} steps are more than {MOST_STEPS}: give fewer")


def _stop_errors(spec: JobSpec) -> Iterator[FieldError]:
    for pointer, by in (("/stop_when", spec.stop_when), ("/keep_best", spec.keep_best)):
        if by is None:
            continue
        if spec.data.evaluate is None:
            yield FieldError(pointer=pointer, detail=_NO_EVALUATION)
        if by.metric not in {"loss", *spec.metrics}:
            known = sorted({"loss", *spec.metrics})
            detail = f"the job has no metric {by.metric!r}; it has {listed(known)}{did_you_mean(by.metric, known)}"
            yield FieldError(pointer=f"{pointer}/metric", detail=detail)
        if spec.parallelism.mode is not Mode.SYNC:
            detail = "the best evaluation's values are computed again up to its step, which is exact in sync mode only"
            yield FieldError(pointer=pointer, detail=detail)


def _slice_errors(plan: JobPlan) -> Iterator[FieldError]:
    if plan.slices > MOST_SLICES:
        detail = (
            f"the parameters are {plan.slices} slices of at most {plan.slice_bytes} bytes, "
            f"more than {MOST_SLICES}: larger slices are fewer"
        )
        yield FieldError(pointer="/parallelism/slice_bytes", detail=detail)
    for key in plan.keys:
        if key.rows and key.shape[0] and nbytes(key) // key.shape[0] > MOST_ROW_BYTES:
            detail = f"a row of table {key.key!r} has {nbytes(key) // key.shape[0]} bytes, more than {MOST_ROW_BYTES}"
            yield FieldError(pointer="/graph/parameters", detail=detail, node=key.key)


def first_value_errors(graph: Graph) -> Iterator[FieldError]:
    """Numbers of an initializer, or the width of its range, that are infinite in the parameter's type: so would its
    first values be, and nothing could be trained from there."""
    for index, parameter in enumerate(graph.parameters):
        beyond = _beyond(parameter.initializer.attributes, parameter.type.dtype)
        if beyond is not None:
            name, number, what = beyond
            detail = f"parameter {parameter.name!r} is {parameter.type}; {name}: {number:g} is {what} there"
            yield FieldError(pointer=f"/graph/parameters/{index}/initializer", detail=detail, node=parameter.name)


def _beyond(attributes: Mapping[str, float], dtype: DType) -> tuple[str, float, str] | None:
    """The first number that is infinite in that type, or 0 and was not given so."""
    numbers = dict(attributes)
    if {"low", "high"} <= numbers.keys():
        numbers["high - low"] = numbers["high"] - numbers["low"]
    with np.errstate(over="ignore", under="ignore"):
        for name, number in numbers.items():
            there = dtype.numpy.type(number)
            if not np.isfinite(there):
                return name, number, "infinite"
            if number and not there and dtype.is_float:
                return name, number, "0"
    return None
