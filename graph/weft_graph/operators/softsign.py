"""Y = X / (1 + |X|)."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.schema import GradientContext, OpSchema
from weft_graph.shapes.broadcasting import infer_unary
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flow import incoming, scalar


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    x = context.input(0)
    below = apply(context, "Add", apply(context, "Abs", x), scalar(context, 1, x))
    return (apply(context, "Div", incoming(context), apply(context, "Mul", below, below)),)


SCHEMA = OpSchema(
    op_type="Softsign",
    inputs=(required("input", FLOATS),),
    outputs=(required("output", FLOATS),),
    infer=infer_unary,
    gradient=_gradient,
    pointwise=True,
)
