"""AveragePool: the mean of each window, of the elements that are there or of all its places."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.open_windows import infer_counts
from weft_graph.shapes.spatial_flops import windowed
from weft_graph.shapes.windows import WINDOW_ATTRIBUTES
from weft_graph.types import TensorType

_POOL_ATTRIBUTES = {
    **WINDOW_ATTRIBUTES,
    "ceil_mode": Attribute(int, default=0),
    "count_include_pad": Attribute(int, default=0),
}


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    return (TensorType(data.dtype, (*data.shape[:2], *infer_counts(context, data))),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    attributes: dict[str, AttributeValue] = {}
    for name in _POOL_ATTRIBUTES:
        value = context.attribute(name)
        if value is not None:
            attributes[name] = value
    return context.emit("AveragePoolGrad", (incoming(context), context.input(0)), attributes, domain=WEFT_DOMAIN)


SCHEMA = OpSchema(
    op_type="AveragePool",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=_infer,
    gradient=_gradient,
    attributes=_POOL_ATTRIBUTES,
    work=windowed,
)
