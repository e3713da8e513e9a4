"""MatMul: the product of matrices, or of stacks of them that broadcast, as numpy.matmul defines it."""

from __future__ import annotations

from weft_graph.formals import SUMMABLE, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import GradientContext, InferContext, OpSchema
from weft_graph.shapes.broadcasting import broadcast, check_same_dtype
from weft_graph.shapes.dims import agree
from weft_graph.shapes.flops import stacked_products
from weft_graph.shapes.flow import incoming
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    check_same_dtype(context, 0, 1)
    left, right = context.input(0), context.input(1)
    if left.rank == 0 or right.rank == 0:
        raise context.shape_error(f"a matrix product takes no zero-dim tensor: {left} and {right}")
    inner = left.shape[-1], right.shape[-2 if right.rank > 1 else 0]
    if not agree(*inner):
        raise context.shape_error(f"inner dimensions differ: {inner[0]} of {left} and {inner[1]} of {right}")
    stack = broadcast(left.shape[:-2], right.shape[:-2])
    if stack is None:
        raise context.shape_error(f"stacks of matrices do not broadcast: {left} and {right}")
    rows = left.shape[-2:-1]
    columns = right.shape[-1:] if right.rank > 1 else ()
    return (TensorType(left.dtype, (*stack, *rows, *columns)),)


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
