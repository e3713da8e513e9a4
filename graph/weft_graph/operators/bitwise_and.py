"""BitwiseAnd: the and of the bits of A and B, element by element, broadcast."""

from __future__ import annotations

from weft_graph.formals import INTEGERS, required
from weft_graph.schema import OpSchema
from weft_graph.shapes.broadcasting import infer_binary

SCHEMA = OpSchema(
    op_type="BitwiseAnd",
    inputs=(required("A", INTEGERS), required("B", INTEGERS)),
    outputs=(required("C", INTEGERS),),
    infer=infer_binary,
    pointwise=True,
    commutative=True,
)
