"""GlobalLpPool: the p-norm over all spatial dimensions, each of which becomes 1."""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.formals import FLOATS, required
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flops import reduced
from weft_graph.shapes.flow import incoming, scalar
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, p = context.input(0), as_int(context.attribute("p"))
    if data.rank < 2 or p < 1:
        raise context.shape_error(f"the input must be (batch, channels, spatial ...) and p {p} at least 1, got {data}")
    return (TensorType(data.dtype, (*data.shape[:2], *(1,) * (data.rank - 2))),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    data, norm, p = context.input(0), context.output(0), as_int(context.attribute("p"))
    if p == 1:
        return (apply(context, "Mul", apply(context, "Sign", data), incoming(context)),)
    # Each element over the norm, which is at most 1: its powers neither overflow nor vanish all at once.
    is_zero = apply(context, "Equal", norm, scalar(context, 0, norm))
    ratio = apply(context, "Div", data, apply(context, "Where", is_zero, scalar(context, 1, norm), norm))
    if p > 2:
        size = apply(context, "Pow", apply(context, "Abs", ratio), scalar(context, p - 1, data))
        ratio = apply(context, "Mul", apply(context, "Sign", data), size)
    return (apply(context, "Mul", ratio, incoming(context)),)


SCHEMA = OpSchema(
    op_type="GlobalLpPool",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=_infer,
    gradient=_gradient,
    attributes={"p": Attribute(int, default=2)},
    flops=reduced,
)
