"""MatMulInteger: the product of matrices of 8-bit numbers less their zero points, as int32."""

from __future__ import annotations

from weft_graph.formals import optional, required
from weft_graph.schema import InferContext, OpSchema
from weft_graph.shapes.flops import stacked_products
from weft_graph.shapes.products import infer_product
from weft_graph.shapes.quantizing import check_operand
from weft_graph.types import DType, TensorType

_BYTES = frozenset({DType.INT8, DType.UINT8})


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    left, right = context.input(0), context.input(1)
    for index, data, by_row, what in ((2, left, True, "A"), (3, right, False, "B")):
        zero_point = context.optional_input(index)
        if zero_point is None:
            continue
        if zero_point.dtype != data.dtype:
            raise context.dtype_error(f"the zero point of {what} is {zero_point}, and {what} is {data}")
        check_operand(context, zero_point, data, by_row=by_row, what=f"the zero point of {what}")
    return (TensorType(DType.INT32, infer_product(context, left, right)),)


SCHEMA = OpSchema(
    op_type="MatMulInteger",
    inputs=(
        required("A", _BYTES),
        required("B", _BYTES),
        optional("a_zero_point", _BYTES),
        optional("b_zero_point", _BYTES),
    ),
    outputs=(required("Y", frozenset({DType.INT32})),),
    infer=_infer,
    flops=stacked_products,
)
