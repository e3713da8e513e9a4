"""Y = 1 / X."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.schema import GradientContext, OpSchema
from weft_graph.shapes.broadcasting import infer_unary
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flow import incoming


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, output = incoming(context), context.output(0)
    share = apply(context, "Mul", gradient, apply(context, "Mul", output, output))
    return (apply(context, "Neg", share),)


SCHEMA = OpSchema(
    op_type="Reciprocal",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=infer_unary,
    gradient=_gradient,
    pointwise=True,
)
