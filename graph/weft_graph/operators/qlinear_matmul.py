"""QLinearMatMul: the product of quantized matrices, quantized: scales by row of `a`, by column of `b`, or one each."""

from __future__ import annotations

from weft_graph.formals import FLOATS8, required
from weft_graph.schema import InferContext, OpSchema
from weft_graph.shapes.broadcasting import check_same_dtype
from weft_graph.shapes.products import infer_product
from weft_graph.shapes.quantizing import check_channels, check_one_each, check_operand
from weft_graph.types import DType, TensorType

_DTYPES = frozenset({DType.INT8, DType.UINT8}) | (FLOATS8 - {DType.FLOAT8E8M0})
_SCALES = frozenset({DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32})


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    check_same_dtype(context, 1, 4, 6)
    left, right, zero_point = context.input(0), context.input(3), context.input(7)
    check_one_each(context, 1, 2, 0, "a")
    check_one_each(context, 4, 5, 3, "b")
    check_operand(context, context.input(1), left, by_row=True, what="the scale of a")
    check_operand(context, context.input(4), right, by_row=False, what="the scale of b")
    check_channels(context, context.input(6), 1, "the scale of y")
    check_channels(context, zero_point, 1, "the zero point of y")
    return (TensorType(zero_point.dtype, infer_product(context, left, right)),)


SCHEMA = OpSchema(
    op_type="QLinearMatMul",
    inputs=(
        required("a", _DTYPES),
        required("a_scale", _SCALES),
        required("a_zero_point", _DTYPES),
        required("b", _DTYPES),
        required("b_scale", _SCALES),
        required("b_zero_point", _DTYPES),
        required("y_scale", _SCALES),
        required("y_zero_point", _DTYPES),
    ),
    outputs=(required("y", _DTYPES),),
    infer=_infer,
)
