"""MatMul: the product of matrices, or of stacks of them that broadcast, as numpy.matmul defines it."""

from __future__ import annotations

from weft_graph.formals import SUMMABLE, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import GradientContext, InferContext, OpSchema
from weft_graph.shapes.broadcasting import check_same_dtype
from weft_graph.shapes.flops import stacked_products
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.products import infer_product
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    check_same_dtype(context, 0, 1)
    left, right = context.input(0), context.input(1)
    return (TensorType(left.dtype, infer_product(context, left, right)),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, left, right = incoming(context), context.input(0), context.input(1)
    gradients: list[str | None] = [None, None]
    if context.needs(0):
        (gradients[0],) = context.emit("MatMulLeftGrad", (gradient, left, right), domain=WEFT_DOMAIN)
    if context.needs(1):
        (gradients[1],) = context.emit("MatMulRightGrad", (gradient, left, right), domain=WEFT_DOMAIN)
    return tuple(gradients)


SCHEMA = OpSchema(
    op_type="MatMul",
    inputs=(required("A", SUMMABLE), required("B", SUMMABLE)),
    outputs=(required("Y", SUMMABLE),),
    infer=_infer,
    gradient=_gradient,
    flops=stacked_products,
)
