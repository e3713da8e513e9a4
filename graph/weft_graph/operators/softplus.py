"""Y = ln(exp(X) + 1)."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.schema import GradientContext, OpSchema
from weft_graph.shapes.broadcasting import infer_unary
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flow import incoming


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    return (apply(context, "Mul", incoming(context), apply(context, "Sigmoid", context.input(0))),)


SCHEMA = OpSchema(
    op_type="Softplus",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=infer_unary,
    gradient=_gradient,
    pointwise=True,
)
