"""LpPool: the p-norm of each window; padding counts as 0. Where the norm is 0, so is the gradient."""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.composing import given_attributes
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.open_windows import infer_counts
from weft_graph.shapes.spatial_flops import windowed
from weft_graph.shapes.windows import WINDOW_ATTRIBUTES
from weft_graph.types import TensorType

LP_ATTRIBUTES = {**WINDOW_ATTRIBUTES, "ceil_mode": Attribute(int, default=0), "p": Attribute(int, default=2)}


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, p = context.input(0), as_int(context.attribute("p"))
    if p < 1:
        raise context.shape_error(f"p is {p}, and must be at least 1")
    return (TensorType(data.dtype, (*data.shape[:2], *infer_counts(context, data))),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), context.input(0), context.output(0))
    return context.emit("LpPoolGrad", inputs, given_attributes(context, LP_ATTRIBUTES), domain=WEFT_DOMAIN)


SCHEMA = OpSchema(
    op_type="LpPool",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=_infer,
    gradient=_gradient,
    attributes=LP_ATTRIBUTES,
    flops=windowed,
)
