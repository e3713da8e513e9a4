"""Or: whether one or both hold, element by element, broadcast."""

from __future__ import annotations

from weft_graph.formals import BOOLEANS, required
from weft_graph.schema import OpSchema
from weft_graph.shapes.broadcasting import infer_comparison

SCHEMA = OpSchema(
    op_type="Or",
    inputs=(required("A", BOOLEANS), required("B", BOOLEANS)),
    outputs=(required("C", BOOLEANS),),
    infer=infer_comparison,
    pointwise=True,
    commutative=True,
)
