"""Y = X, where it is below 0 `alpha` * (exp(X / alpha) - 1)."""

from __future__ import annotations

from weft_graph.attributes import as_float
from weft_graph.formals import FLOATS, required
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flow import incoming, scalar
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    if as_float(context.attribute("alpha")) == 0:
        raise context.shape_error("alpha must not be 0")
    return (context.input(0),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, x = incoming(context), context.input(0)
    negative = apply(context, "Less", x, scalar(context, 0, x))
    # exp(X / alpha) is the output over alpha, higher by 1.
    slope = apply(context, "Div", context.output(0), scalar(context, as_float(context.attribute("alpha")), x))
    share = apply(context, "Mul", gradient, apply(context, "Add", slope, scalar(context, 1, x)))
    return (apply(context, "Where", negative, share, gradient),)


SCHEMA = OpSchema(
    op_type="Celu",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=_infer,
    gradient=_gradient,
    attributes={"alpha": Attribute(float, default=1.0)},
    pointwise=True,
)
