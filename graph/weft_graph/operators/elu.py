"""Y = X, where it is below 0 `alpha` * (exp(X) - 1). At 0 the slope is `alpha`."""

from __future__ import annotations

from weft_graph.attributes import as_float
from weft_graph.formals import FLOATS, required
from weft_graph.schema import Attribute, GradientContext, OpSchema
from weft_graph.shapes.broadcasting import infer_unary
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flow import incoming, scalar


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, x = incoming(context), context.input(0)
    negative = apply(context, "LessOrEqual", x, scalar(context, 0, x))
    # alpha * exp(X) is the output, higher by alpha.
    slope = apply(context, "Add", context.output(0), scalar(context, as_float(context.attribute("alpha")), x))
    share = apply(context, "Mul", gradient, slope)
    return (apply(context, "Where", negative, share, gradient),)


SCHEMA = OpSchema(
    op_type="Elu",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=infer_unary,
    gradient=_gradient,
    attributes={"alpha": Attribute(float, default=1.0)},
    pointwise=True,
)
