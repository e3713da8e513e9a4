"""Less: whether A is below B, element by element, broadcast."""

from __future__ import annotations

from weft_graph.formals import BOOLEANS, NUMBERS, required
from weft_graph.schema import OpSchema
from weft_graph.shapes.broadcasting import infer_comparison

SCHEMA = OpSchema(
    op_type="Less",
    inputs=(required("A", NUMBERS), required("B", NUMBERS)),
    outputs=(required("C", BOOLEANS),),
    infer=infer_comparison,
    pointwise=True,
)
