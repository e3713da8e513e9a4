"""Y = the largest whole number that is not above X."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.schema import OpSchema
from weft_graph.shapes.broadcasting import infer_unary
from weft_graph.shapes.flow import flat

SCHEMA = OpSchema(
    op_type="Floor",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=infer_unary,
    gradient=flat,
    pointwise=True,
)
