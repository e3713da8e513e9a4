"""MatMulLeftGrad(gradient, left, right): the gradient of MatMul's left operand, of that operand's shape."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import InferContext, OpSchema
from weft_graph.shapes.flops import product_gradient
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (context.input(1),)


SCHEMA = OpSchema(
    op_type="MatMulLeftGrad",
    inputs=(required("gradient", FLOATS), required("left", FLOATS), required("right", FLOATS)),
    outputs=(required("left_gradient", FLOATS),),
    infer=_infer,
    domain=WEFT_DOMAIN,
    flops=product_gradient,
)
