"""GlobalMaxPool: the largest element over all spatial dimensions, each of which becomes 1.

Equals share the gradient.
"""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.ir import AttributeValue
from weft_graph.schema import GradientContext, InferContext, OpSchema
from weft_graph.shapes.composing import apply
from weft_graph.shapes.extremes import hits
from weft_graph.shapes.flops import reduced
from weft_graph.shapes.flow import incoming
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    if data.rank < 2:
        raise context.shape_error(f"the input must be (batch, channels, spatial ...), got {data}")
    return (TensorType(data.dtype, (*data.shape[:2], *(1,) * (data.rank - 2))),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    data = context.input(0)
    axes = tuple(range(2, context.type_of(data).rank))
    attributes: dict[str, AttributeValue] = {"axes": axes, "keepdims": 1, "noop_with_empty_axes": 1}
    hit = hits(context, data, context.output(0))
    share = apply(context, "Div", incoming(context), apply(context, "ReduceSum", hit, **attributes))
    return (apply(context, "Mul", hit, share),)


SCHEMA = OpSchema(
    op_type="GlobalMaxPool",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=_infer,
    gradient=_gradient,
    flops=reduced,
)
