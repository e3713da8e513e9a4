"""GlobalAveragePool: the mean over all spatial dimensions, each of which becomes 1."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.schema import GradientContext, InferContext, OpSchema
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
    return context.emit("ReduceMeanGrad", (incoming(context), data), attributes, domain=WEFT_DOMAIN)


SCHEMA = OpSchema(
    op_type="GlobalAveragePool",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=_infer,
    gradient=_gradient,
)
