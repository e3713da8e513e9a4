"""Y = `alpha` * X + `beta`, within 0 and 1."""

from __future__ import annotations

from weft_graph.attributes import as_float
from weft_graph.formals import FLOATS, required
from weft_graph.schema import Attribute, GradientContext, OpSchema
from weft_graph.shapes.broadcasting import infer_unary
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flow import incoming, scalar


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, output = incoming(context), context.output(0)
    above = apply(context, "Greater", output, scalar(context, 0, output))
    inside = apply(context, "And", above, apply(context, "Less", output, scalar(context, 1, output)))
    share = apply(context, "Mul", gradient, scalar(context, as_float(context.attribute("alpha")), output))
    return (apply(context, "Where", inside, share, scalar(context, 0, output)),)


SCHEMA = OpSchema(
    op_type="HardSigmoid",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=infer_unary,
    gradient=_gradient,
    attributes={"alpha": Attribute(float, default=0.2), "beta": Attribute(float, default=0.5)},
    pointwise=True,
)
