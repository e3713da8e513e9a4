"""MaxUnpoolGrad(gradient, I): the gradient of MaxUnpool's X, which lies where the indices say; its attributes."""

from __future__ import annotations

from weft_graph.formals import FLOATS, INT64, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.operators.max_unpool import UNPOOL_ATTRIBUTES
from weft_graph.schema import InferContext, OpSchema
from weft_graph.shapes.flops import moved
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (TensorType(context.input(0).dtype, context.input(1).shape),)


SCHEMA = OpSchema(
    op_type="MaxUnpoolGrad",
    inputs=(required("gradient", FLOATS), required("I", INT64)),
    outputs=(required("X_gradient", FLOATS),),
    infer=_infer,
    attributes=UNPOOL_ATTRIBUTES,
    domain=WEFT_DOMAIN,
    flops=moved,
)
