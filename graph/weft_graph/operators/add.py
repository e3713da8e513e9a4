"""C = A + B, broadcast."""

from __future__ import annotations

from weft_graph.formals import NUMBERS, required
from weft_graph.schema import GradientContext, OpSchema
from weft_graph.shapes.broadcasting import infer_binary, sum_to
from weft_graph.shapes.flow import incoming


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient = incoming(context)
    left = sum_to(context, gradient, context.input(0)) if context.needs(0) else None
    right = sum_to(context, gradient, context.input(1)) if context.needs(1) else None
    return left, right


SCHEMA = OpSchema(
    op_type="Add",
    inputs=(required("A", NUMBERS), required("B", NUMBERS)),
    outputs=(required("C", NUMBERS),),
    infer=infer_binary,
    gradient=_gradient,
    pointwise=True,
    commutative=True,
)
