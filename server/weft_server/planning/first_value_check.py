"""Whether parameters can have the first values that the graph says. Pure. Pointers lead into the job's `/graph`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from weft.api.problem import FieldError
from weft_graph.ir import Graph
from weft_graph.types import DType


def first_value_errors(graph: Graph) -> Iterator[FieldError]:
    """Numbers of an initializer, or the width of its range, that are infinite in the parameter's type: so would its
    first values be, and nothing could be trained from there."""
    for index, parameter in enumerate(graph.parameters):
        beyond = _beyond(parameter.initializer.attributes, parameter.type.dtype)
        if beyond is not None:
            name, number = beyond
            detail = f"parameter {parameter.name!r} is {parameter.type}; {name}: {number:g} is infinite there"
            yield FieldError(pointer=f"/graph/parameters/{index}/initializer", detail=detail, node=parameter.name)


def _beyond(attributes: Mapping[str, float], dtype: DType) -> tuple[str, float] | None:
    """The first number that is infinite in that type."""
    numbers = dict(attributes)
    if {"low", "high"} <= numbers.keys():
        numbers["high - low"] = numbers["high"] - numbers["low"]
    with np.errstate(over="ignore"):
        return next((one for one in numbers.items() if not np.isfinite(dtype.numpy.type(one[1]))), None)
