"""Where: X where the condition holds, Y elsewhere, broadcast."""

from __future__ import annotations

from weft_graph.formals import ANY, BOOLEANS, required
from weft_graph.schema import GradientContext, InferContext, OpSchema
from weft_graph.shapes.broadcasting import check_same_dtype, infer_broadcast, sum_to
from weft_graph.shapes.flow import incoming, scalar
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    check_same_dtype(context, 1, 2)
    return (TensorType(context.input(1).dtype, infer_broadcast(context, 0, 1, 2)),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, condition = incoming(context), context.input(0)
    zero = scalar(context, 0, gradient)
    gradients: list[str | None] = [None, None, None]
    for index, chosen in ((1, (gradient, zero)), (2, (zero, gradient))):
        if context.needs(index):
            (part,) = context.emit("Where", (condition, *chosen))
            gradients[index] = sum_to(context, part, context.input(index))
    return tuple(gradients)


SCHEMA = OpSchema(
    op_type="Where",
    inputs=(required("condition", BOOLEANS), required("X", ANY), required("Y", ANY)),
    outputs=(required("output", ANY),),
    infer=_infer,
    gradient=_gradient,
    pointwise=True,
)
