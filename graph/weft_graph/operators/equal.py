"""Equal: whether A equals B, element by element, broadcast."""

from __future__ import annotations

from weft_graph.formals import ANY, BOOLEANS, required
from weft_graph.schema import OpSchema
from weft_graph.shapes.broadcasting import infer_comparison

SCHEMA = OpSchema(
    op_type="Equal",
    inputs=(required("A", ANY), required("B", ANY)),
    outputs=(required("C", BOOLEANS),),
    infer=infer_comparison,
    pointwise=True,
    commutative=True,
)
