"""Y = X * sigmoid(`alpha` * X)."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.schema import Attribute, GradientContext, OpSchema
from weft_graph.shapes.broadcasting import infer_unary
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.swishing import swish_slope


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    return (apply(context, "Mul", incoming(context), swish_slope(context, context.input(0))),)


SCHEMA = OpSchema(
    op_type="Swish",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=infer_unary,
    gradient=_gradient,
    attributes={"alpha": Attribute(float, default=1.0)},
    pointwise=True,
)
