"""Size: how many elements the input has."""

from __future__ import annotations

from weft_graph.formals import ANY, INT64, required
from weft_graph.schema import InferContext, OpSchema
from weft_graph.shapes.flops import moved
from weft_graph.types import DType, TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (TensorType(DType.INT64, ()),)


SCHEMA = OpSchema(
    op_type="Size",
    inputs=(required("data", ANY),),
    outputs=(required("size", INT64),),
    infer=_infer,
    flops=moved,
    shape_only=(0,),
)
