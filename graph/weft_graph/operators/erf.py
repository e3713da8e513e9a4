"""Y = the error function of X, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to X."""

from __future__ import annotations

import math

from weft_graph.formals import FLOATS, required
from weft_graph.schema import GradientContext, OpSchema
from weft_graph.shapes.broadcasting import infer_unary
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flow import incoming, scalar


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    x = context.input(0)
    bell = apply(context, "Exp", apply(context, "Neg", apply(context, "Mul", x, x)))
    height = scalar(context, 2 / math.sqrt(math.pi), x)
    return (apply(context, "Mul", incoming(context), apply(context, "Mul", bell, height)),)


SCHEMA = OpSchema(
    op_type="Erf",
    inputs=(required("input", FLOATS),),
    outputs=(required("output", FLOATS),),
    infer=infer_unary,
    gradient=_gradient,
    pointwise=True,
)
