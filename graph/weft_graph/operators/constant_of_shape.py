"""ConstantOfShape: a tensor of the shape that the input lists, all of it `value`.

ONNX has `value` as a tensor of one element: here it is that number, and `dtype` ONNX's number of its type.
"""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.formals import ANY, INT64, required
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER, NUMBER_OF_DTYPE
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.shapes.flops import moved
from weft_graph.shapes.lists import infer_shape
from weft_graph.types import DType, TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    shape, number = infer_shape(context, 0, "input"), as_int(context.attribute("dtype"))
    dtype = DTYPE_OF_NUMBER.get(number)
    if dtype is None:
        known = ", ".join(f"{key} {value}" for key, value in DTYPE_OF_NUMBER.items())
        raise context.dtype_error(f"dtype is element type {number}, which is none of {known}")
    return (TensorType(dtype, shape),)


SCHEMA = OpSchema(
    op_type="ConstantOfShape",
    inputs=(required("input", INT64),),
    outputs=(required("output", ANY),),
    infer=_infer,
    attributes={
        "value": Attribute(float, default=0.0),
        "dtype": Attribute(int, default=NUMBER_OF_DTYPE[DType.FLOAT32]),
    },
    flops=moved,
)
