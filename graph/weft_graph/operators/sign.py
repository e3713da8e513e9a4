"""Y = -1, 0 or 1, as the sign of X is; NaN stays."""

from __future__ import annotations

from weft_graph.formals import NUMBERS, required
from weft_graph.schema import OpSchema
from weft_graph.shapes.broadcasting import infer_unary
from weft_graph.shapes.flow import flat

SCHEMA = OpSchema(
    op_type="Sign",
    inputs=(required("X", NUMBERS),),
    outputs=(required("Y", NUMBERS),),
    infer=infer_unary,
    gradient=flat,
    pointwise=True,
)
