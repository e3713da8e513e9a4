"""C = A * B, broadcast."""

from __future__ import annotations

from weft_graph.formals import NUMBERS, required
from weft_graph.schema import GradientContext, OpSchema
from weft_graph.shapes.broadcasting import infer_binary, sum_to
from weft_graph.shapes.flow import incoming


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient = incoming(context)
    gradients: list[str | None] = [None, None]
    for index in (0, 1):
        if context.needs(index):
            (part,) = context.emit("Mul", (gradient, context.input(1 - index)))
            gradients[index] = sum_to(context, part, context.input(index))
    return tuple(gradients)


SCHEMA = OpSchema(
    op_type="Mul",
    inputs=(required("A", NUMBERS), required("B", NUMBERS)),
    outputs=(required("C", NUMBERS),),
    infer=infer_binary,
    gradient=_gradient,
    pointwise=True,
    commutative=True,
)
