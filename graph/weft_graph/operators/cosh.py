"""Y = cosh(X)."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.schema import GradientContext, OpSchema
from weft_graph.shapes.broadcasting import infer_unary
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flow import incoming


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, x = incoming(context), context.input(0)
    return (apply(context, "Mul", gradient, apply(context, "Sinh", x)),)


SCHEMA = OpSchema(
    op_type="Cosh",
    inputs=(required("input", FLOATS),),
    outputs=(required("output", FLOATS),),
    infer=infer_unary,
    gradient=_gradient,
    pointwise=True,
)
