"""Y = tan(X), X in radians."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.schema import GradientContext, OpSchema
from weft_graph.shapes.broadcasting import infer_unary
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.slopes import one_plus_square


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    return (apply(context, "Mul", incoming(context), one_plus_square(context, context.output(0))),)


SCHEMA = OpSchema(
    op_type="Tan",
    inputs=(required("input", FLOATS),),
    outputs=(required("output", FLOATS),),
    infer=infer_unary,
    gradient=_gradient,
    pointwise=True,
)
