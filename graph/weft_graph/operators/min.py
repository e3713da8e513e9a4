"""Min: the smallest of all inputs, element by element, broadcast; NaN where one is NaN. Equals share the gradient."""

from __future__ import annotations

from weft_graph.formals import NUMBERS, required, variadic
from weft_graph.schema import OpSchema
from weft_graph.shapes.broadcasting import infer_variadic
from weft_graph.shapes.extremes import shared_by_equals

SCHEMA = OpSchema(
    op_type="Min",
    inputs=(variadic("data_0", NUMBERS),),
    outputs=(required("min", NUMBERS),),
    infer=infer_variadic,
    gradient=shared_by_equals,
    pointwise=True,
)
