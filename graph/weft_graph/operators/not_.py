"""Not: whether X does not hold."""

from __future__ import annotations

from weft_graph.formals import BOOLEANS, required
from weft_graph.schema import OpSchema
from weft_graph.shapes.broadcasting import infer_unary

SCHEMA = OpSchema(
    op_type="Not",
    inputs=(required("X", BOOLEANS),),
    outputs=(required("Y", BOOLEANS),),
    infer=infer_unary,
    pointwise=True,
)
