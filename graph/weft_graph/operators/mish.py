"""Y = X * tanh(ln(exp(X) + 1))."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import GradientContext, OpSchema
from weft_graph.shapes.broadcasting import infer_unary
from weft_graph.shapes.flow import incoming


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    return context.emit("MishGrad", (incoming(context), context.input(0)), domain=WEFT_DOMAIN)


SCHEMA = OpSchema(
    op_type="Mish",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=infer_unary,
    gradient=_gradient,
    pointwise=True,
)
