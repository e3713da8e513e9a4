"""IsNaN: whether X is not a number."""

from __future__ import annotations

from weft_graph.formals import BOOLEANS, FLOATS, FLOATS8, required
from weft_graph.schema import InferContext, OpSchema
from weft_graph.types import DType, TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (TensorType(DType.BOOL, context.input(0).shape),)


SCHEMA = OpSchema(
    op_type="IsNaN",
    inputs=(required("X", FLOATS | FLOATS8),),
    outputs=(required("Y", BOOLEANS),),
    infer=_infer,
    pointwise=True,
)
