"""QLinearConv: the convolution of quantized numbers, quantized; weights have one scale, or one for each feature.

The bias is int32, of the scale of the input times the weights'.
"""

from __future__ import annotations

from weft_graph.formals import optional, required
from weft_graph.operators.conv import CONV_ATTRIBUTES
from weft_graph.schema import InferContext, OpSchema
from weft_graph.shapes.products import infer_convolution
from weft_graph.shapes.quantizing import check_channels, check_one_each
from weft_graph.types import DType, TensorType

_BYTES = frozenset({DType.INT8, DType.UINT8})
_FLOAT32 = frozenset({DType.FLOAT32})


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, weights, zero_point = context.input(0), context.input(3), context.input(7)
    shape = infer_convolution(context, data, weights, context.optional_input(8))
    check_one_each(context, 1, 2, 0, "x")
    check_one_each(context, 4, 5, 3, "w")
    for index, channels, what in (
        (1, 1, "the scale of x"),
        (4, weights.shape[0], "the scale of w"),
        (6, 1, "the scale of y"),
        (7, 1, "the zero point of y"),
    ):
        check_channels(context, context.input(index), channels, what)
    return (TensorType(zero_point.dtype, shape),)


SCHEMA = OpSchema(
    op_type="QLinearConv",
    inputs=(
        required("x", _BYTES),
        required("x_scale", _FLOAT32),
        required("x_zero_point", _BYTES),
        required("w", _BYTES),
        required("w_scale", _FLOAT32),
        required("w_zero_point", _BYTES),
        required("y_scale", _FLOAT32),
        required("y_zero_point", _BYTES),
        optional("B", frozenset({DType.INT32})),
    ),
    outputs=(required("y", _BYTES),),
    infer=_infer,
    attributes=CONV_ATTRIBUTES,
)
