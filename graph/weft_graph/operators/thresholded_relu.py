"""Y = X where it is above `alpha`, 0 elsewhere."""

from __future__ import annotations

from weft_graph.attributes import as_float
from weft_graph.formals import FLOATS, required
from weft_graph.schema import Attribute, GradientContext, OpSchema
from weft_graph.shapes.broadcasting import infer_unary
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flow import incoming, scalar


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, x = incoming(context), context.input(0)
    above = apply(context, "Greater", x, scalar(context, as_float(context.attribute("alpha")), x))
    return (apply(context, "Where", above, gradient, scalar(context, 0, x)),)


SCHEMA = OpSchema(
    op_type="ThresholdedRelu",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=infer_unary,
    gradient=_gradient,
    attributes={"alpha": Attribute(float, default=1.0)},
    pointwise=True,
)
