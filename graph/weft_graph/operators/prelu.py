"""Y = X, where it is below 0 times `slope`, which broadcasts to X. At 0 that is the slope of Y, too."""

from __future__ import annotations

from weft_graph.formals import NUMBERS, required
from weft_graph.schema import GradientContext, InferContext, OpSchema
from weft_graph.shapes.broadcasting import broadcasts_to, check_same_dtype, sum_to
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flow import incoming, scalar
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    check_same_dtype(context, 0, 1)
    data, slope = context.input(0), context.input(1)
    if not broadcasts_to(slope.shape, data.shape):
        raise context.shape_error(f"slope {slope} does not broadcast to {data}")
    return (data,)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, x, slope = incoming(context), context.input(0), context.input(1)
    zero = scalar(context, 0, x)
    negative = apply(context, "LessOrEqual", x, zero)
    gradients: list[str | None] = [None, None]
    if context.needs(0):
        share = apply(context, "Mul", gradient, slope)
        gradients[0] = apply(context, "Where", negative, share, gradient)
    if context.needs(1):
        part = apply(context, "Where", negative, apply(context, "Mul", gradient, x), zero)
        gradients[1] = sum_to(context, part, slope)
    return tuple(gradients)


SCHEMA = OpSchema(
    op_type="PRelu",
    inputs=(required("X", NUMBERS), required("slope", NUMBERS)),
    outputs=(required("Y", NUMBERS),),
    infer=_infer,
    gradient=_gradient,
    pointwise=True,
)
