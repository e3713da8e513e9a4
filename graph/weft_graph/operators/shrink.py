"""Shrink: Y = X + `bias` below -`lambd`, X - `bias` above `lambd`, 0 between."""

from __future__ import annotations

from weft_graph.attributes import as_float
from weft_graph.formals import NUMBERS, required
from weft_graph.schema import Attribute, GradientContext, OpSchema
from weft_graph.shapes.broadcasting import infer_unary
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flow import incoming, scalar


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, x = incoming(context), context.input(0)
    limit = as_float(context.attribute("lambd"))
    below = apply(context, "Less", x, scalar(context, -limit, x))
    outside = apply(context, "Or", below, apply(context, "Greater", x, scalar(context, limit, x)))
    return (apply(context, "Where", outside, gradient, scalar(context, 0, x)),)


SCHEMA = OpSchema(
    op_type="Shrink",
    inputs=(required("input", NUMBERS),),
    outputs=(required("output", NUMBERS),),
    infer=infer_unary,
    gradient=_gradient,
    attributes={"bias": Attribute(float, default=0.0), "lambd": Attribute(float, default=0.5)},
    pointwise=True,
)
