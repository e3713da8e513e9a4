"""MaxPool: the largest element of each window, and where it lies in the flattened input."""

from __future__ import annotations

from weft_graph.formals import FLOATS, INT64, optional, required
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.open_windows import infer_counts
from weft_graph.shapes.spatial_flops import windowed
from weft_graph.shapes.windows import WINDOW_ATTRIBUTES
from weft_graph.types import DType, TensorType

_DTYPES = FLOATS | {DType.INT8, DType.UINT8}
_POOL_ATTRIBUTES = {**WINDOW_ATTRIBUTES, "ceil_mode": Attribute(int, default=0)}


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    shape = (*data.shape[:2], *infer_counts(context, data))
    return TensorType(data.dtype, shape), TensorType(DType.INT64, shape)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    attributes: dict[str, AttributeValue] = {}
    for name in _POOL_ATTRIBUTES:
        value = context.attribute(name)
        if value is not None:
            attributes[name] = value
    inputs = (incoming(context), context.input(0), context.output(0))
    return context.emit("MaxPoolGrad", inputs, attributes, domain=WEFT_DOMAIN)


SCHEMA = OpSchema(
    op_type="MaxPool",
    inputs=(required("X", _DTYPES),),
    outputs=(required("Y", _DTYPES), optional("Indices", INT64)),
    infer=_infer,
    gradient=_gradient,
    attributes={**_POOL_ATTRIBUTES, "storage_order": Attribute(int, default=0)},
    work=windowed,
)
