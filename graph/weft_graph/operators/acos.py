"""Y = arccos(X); NaN outside [-1, 1]."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.schema import GradientContext, OpSchema
from weft_graph.shapes.broadcasting import infer_unary
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.slopes import one_minus_square


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, x = incoming(context), context.input(0)
    return (
        apply(context, "Neg", apply(context, "Div", gradient, apply(context, "Sqrt", one_minus_square(context, x)))),
    )


SCHEMA = OpSchema(
    op_type="Acos",
    inputs=(required("input", FLOATS),),
    outputs=(required("output", FLOATS),),
    infer=infer_unary,
    gradient=_gradient,
    pointwise=True,
)
