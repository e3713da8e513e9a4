"""BitCast: the same bits as another type, `to` by ONNX's number, whose elements have as many."""

from __future__ import annotations

from weft_graph.formals import ANY, required
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.shapes.casting import dtype_attribute
from weft_graph.shapes.flops import moved
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, dtype = context.input(0), dtype_attribute(context, "to")
    if data.dtype.bits != dtype.bits:
        raise context.dtype_error(f"{data.dtype} has {data.dtype.bits} bits and {dtype} {dtype.bits}")
    return (TensorType(dtype, data.shape),)


SCHEMA = OpSchema(
    op_type="BitCast",
    inputs=(required("input", ANY),),
    outputs=(required("output", ANY),),
    infer=_infer,
    attributes={"to": Attribute(int, required=True)},
    flops=moved,
)
