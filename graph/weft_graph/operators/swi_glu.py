"""SwiGLU: Y = A * sigmoid(`alpha` * A) * B, of two inputs of one shape."""

from __future__ import annotations

from weft_graph.attributes import as_float
from weft_graph.dimensions.dims import agree_all
from weft_graph.formals import FLOATS, required
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.broadcasting import check_same_dtype
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.swishing import swish_slope
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    check_same_dtype(context, 0, 1)
    if not agree_all(context.input(0).shape, context.input(1).shape):
        raise context.shape_error(f"A {context.input(0)} and B {context.input(1)} must have one shape")
    return (context.input(0),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, gate, value = incoming(context), context.input(0), context.input(1)
    gradients: list[str | None] = [None, None]
    if context.needs(0):
        slope = swish_slope(context, gate)
        gradients[0] = apply(context, "Mul", gradient, apply(context, "Mul", slope, value))
    if context.needs(1):
        swish = apply(context, "Swish", gate, alpha=as_float(context.attribute("alpha")))
        gradients[1] = apply(context, "Mul", gradient, swish)
    return tuple(gradients)


SCHEMA = OpSchema(
    op_type="SwiGLU",
    inputs=(required("A", FLOATS), required("B", FLOATS)),
    outputs=(required("Y", FLOATS),),
    infer=_infer,
    gradient=_gradient,
    attributes={"alpha": Attribute(float, default=1.0)},
    pointwise=True,
)
