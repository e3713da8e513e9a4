"""IsInf: whether X is infinite, of the signs that the attributes ask for."""

from __future__ import annotations

from weft_graph.formals import BOOLEANS, FLOATS, FLOATS8, required
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.types import DType, TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (TensorType(DType.BOOL, context.input(0).shape),)


SCHEMA = OpSchema(
    op_type="IsInf",
    inputs=(required("X", FLOATS | FLOATS8),),
    outputs=(required("Y", BOOLEANS),),
    infer=_infer,
    attributes={"detect_negative": Attribute(int, default=1), "detect_positive": Attribute(int, default=1)},
    pointwise=True,
)
