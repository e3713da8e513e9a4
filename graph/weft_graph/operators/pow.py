"""Pow: Z = X^Y, broadcast; of X's element type."""

from __future__ import annotations

from weft_graph.formals import FLOATS, INDICES, NUMBERS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import GradientContext, InferContext, OpSchema
from weft_graph.shapes.broadcasting import infer_broadcast, sum_to
from weft_graph.shapes.flow import incoming
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (TensorType(context.input(0).dtype, infer_broadcast(context, 0, 1)),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, base, exponent = incoming(context), context.input(0), context.input(1)
    gradients: list[str | None] = [None, None]
    if context.needs(0):
        (part,) = context.emit("PowBaseGrad", (gradient, base, exponent), domain=WEFT_DOMAIN)
        gradients[0] = sum_to(context, part, base)
    if context.needs(1) and context.type_of(exponent).dtype.is_float:
        inputs = (gradient, base, exponent, context.output(0))
        (part,) = context.emit("PowExponentGrad", inputs, domain=WEFT_DOMAIN)
        gradients[1] = sum_to(context, part, exponent)
    return tuple(gradients)


SCHEMA = OpSchema(
    op_type="Pow",
    inputs=(required("X", FLOATS | INDICES), required("Y", NUMBERS)),
    outputs=(required("Z", FLOATS | INDICES),),
    infer=_infer,
    gradient=_gradient,
    pointwise=True,
)
