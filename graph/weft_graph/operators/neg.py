"""Y = -X."""

from __future__ import annotations

from weft_graph.formals import SIGNED, required
from weft_graph.schema import GradientContext, OpSchema
from weft_graph.shapes.broadcasting import infer_unary
from weft_graph.shapes.flow import incoming


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    return context.emit("Neg", (incoming(context),))


SCHEMA = OpSchema(
    op_type="Neg",
    inputs=(required("X", SIGNED),),
    outputs=(required("Y", SIGNED),),
    infer=infer_unary,
    gradient=_gradient,
    pointwise=True,
)
