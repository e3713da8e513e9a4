"""Y = `gamma` * X, where it is not above 0 `gamma` * `alpha` * (exp(X) - 1)."""

from __future__ import annotations

from weft_graph.attributes import as_float
from weft_graph.formals import FLOATS, required
from weft_graph.schema import Attribute, GradientContext, OpSchema
from weft_graph.shapes.broadcasting import infer_unary
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flow import incoming, scalar


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, x = incoming(context), context.input(0)
    alpha, gamma = as_float(context.attribute("alpha")), as_float(context.attribute("gamma"))
    # gamma * alpha * exp(X) is the output, higher by gamma * alpha.
    slope = apply(context, "Add", context.output(0), scalar(context, gamma * alpha, x))
    positive = apply(context, "Greater", x, scalar(context, 0, x))
    return (apply(context, "Mul", gradient, apply(context, "Where", positive, scalar(context, gamma, x), slope)),)


SCHEMA = OpSchema(
    op_type="Selu",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=infer_unary,
    gradient=_gradient,
    attributes={
        "alpha": Attribute(float, default=1.67326319217681884765625),
        "gamma": Attribute(float, default=1.05070102214813232421875),
    },
    pointwise=True,
)
