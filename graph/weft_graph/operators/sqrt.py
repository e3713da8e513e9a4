"""Y = sqrt(X)."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.schema import GradientContext, OpSchema
from weft_graph.shapes.broadcasting import infer_unary
from weft_graph.shapes.flow import incoming, scalar


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient = incoming(context)
    (half,) = context.emit("Mul", (gradient, scalar(context, 0.5, gradient)))
    return context.emit("Div", (half, context.output(0)))


SCHEMA = OpSchema(
    op_type="Sqrt",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=infer_unary,
    gradient=_gradient,
    pointwise=True,
)
