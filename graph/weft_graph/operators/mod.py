"""Mod: what is left when A is divided by B, broadcast: of B's sign, or of A's with `fmod`."""

from __future__ import annotations

from weft_graph.formals import NUMBERS, required
from weft_graph.schema import Attribute, GradientContext, OpSchema
from weft_graph.shapes.broadcasting import infer_binary, sum_to
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flow import incoming


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient = incoming(context)
    left = sum_to(context, gradient, context.input(0)) if context.needs(0) else None
    if not context.needs(1):
        return left, None
    # A less the rest is B times a whole number, by which a change of B counts.
    multiple = apply(context, "Div", apply(context, "Sub", context.input(0), context.output(0)), context.input(1))
    share = apply(context, "Mul", gradient, apply(context, "Round", multiple))
    return left, apply(context, "Neg", sum_to(context, share, context.input(1)))


SCHEMA = OpSchema(
    op_type="Mod",
    inputs=(required("A", NUMBERS), required("B", NUMBERS)),
    outputs=(required("C", NUMBERS),),
    infer=infer_binary,
    gradient=_gradient,
    attributes={"fmod": Attribute(int, default=0)},
    pointwise=True,
)
