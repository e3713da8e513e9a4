"""Checks a submitted job: reads the source's description, then judges. Blocks; to be run on a thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from weft.api.data import DataSpec
from weft.api.job import JobSpec
from weft.api.problem import FieldError
from weft_data.errors import DataError
from weft_data.numpy_source import open_source
from weft_data.source import Description
from weft_graph.json_place import escape_token
from weft_server.planning.check import check, read_graph
from weft_server.planning.job_refused import JobRefusedError
from weft_server.planning.memory_check import Bounds
from weft_server.planning.plan import JobPlan


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
