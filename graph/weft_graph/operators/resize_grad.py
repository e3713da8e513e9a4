"""ResizeGrad(gradient, X, roi, scales, sizes): the gradient of X; Resize's attributes."""

from __future__ import annotations

from weft_graph.formals import FLOATS, INT64, optional, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.operators.resize import RESIZE_ATTRIBUTES
from weft_graph.schema import InferContext, OpSchema
from weft_graph.shapes.spatial_flops import resampled
from weft_graph.types import DType, TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (context.input(1),)


SCHEMA = OpSchema(
    op_type="ResizeGrad",
    inputs=(
        required("gradient", FLOATS),
        required("X", FLOATS),
        optional("roi", FLOATS),
        optional("scales", frozenset({DType.FLOAT32})),
        optional("sizes", INT64),
    ),
    outputs=(required("X_gradient", FLOATS),),
    infer=_infer,
    attributes=RESIZE_ATTRIBUTES,
    domain=WEFT_DOMAIN,
    flops=resampled,
)
