"""ConvInteger: the convolution of 8-bit numbers less their zero points, as int32; what pads is 0 after that."""

from __future__ import annotations

from weft_graph.formals import optional, required
from weft_graph.operators.conv import CONV_ATTRIBUTES
from weft_graph.schema import InferContext, OpSchema
from weft_graph.shapes.products import infer_convolution
from weft_graph.shapes.quantizing import check_channels
from weft_graph.types import DType, TensorType

_BYTES = frozenset({DType.INT8, DType.UINT8})


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, weights = context.input(0), context.input(1)
    shape = infer_convolution(context, data, weights, None)
    for index, of, channels in ((2, data, 1), (3, weights, weights.shape[0])):
        zero_point = context.optional_input(index)
        if zero_point is None:
            continue
        if zero_point.dtype != of.dtype:
            raise context.dtype_error(f"zero point {zero_point} must be of the type of {of}")
        check_channels(context, zero_point, channels, "a zero point")
    return (TensorType(DType.INT32, shape),)


SCHEMA = OpSchema(
    op_type="ConvInteger",
    inputs=(
        required("x", _BYTES),
        required("w", _BYTES),
        optional("x_zero_point", _BYTES),
        optional("w_zero_point", _BYTES),
    ),
    outputs=(required("y", frozenset({DType.INT32})),),
    infer=_infer,
    attributes=CONV_ATTRIBUTES,
)
