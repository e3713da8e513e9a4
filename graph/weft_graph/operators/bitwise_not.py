"""BitwiseNot: every bit of X turned round."""

from __future__ import annotations

from weft_graph.formals import INTEGERS, required
from weft_graph.schema import OpSchema
from weft_graph.shapes.broadcasting import infer_unary

SCHEMA = OpSchema(
    op_type="BitwiseNot",
    inputs=(required("X", INTEGERS),),
    outputs=(required("Y", INTEGERS),),
    infer=infer_unary,
    pointwise=True,
)
