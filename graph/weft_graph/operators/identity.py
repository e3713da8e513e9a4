"""Y = X."""

from __future__ import annotations

from weft_graph.formals import ANY, required
from weft_graph.schema import GradientContext, OpSchema
from weft_graph.shapes.broadcasting import infer_unary
from weft_graph.shapes.flow import incoming


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    return (incoming(context),)


SCHEMA = OpSchema(
    op_type="Identity",
    inputs=(required("input", ANY),),
    outputs=(required("output", ANY),),
    infer=infer_unary,
    gradient=_gradient,
    pointwise=True,
    views=True,
)
