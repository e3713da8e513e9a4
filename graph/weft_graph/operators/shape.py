"""Shape: the dimensions of the input as a list, those from `start` to before `end`."""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.formals import ANY, INT64, required
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.shapes.flops import moved
from weft_graph.types import DType, TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    end = context.attribute("end")
    dims = context.input(0).shape[as_int(context.attribute("start")) : None if end is None else as_int(end)]
    return (TensorType(DType.INT64, (len(dims),)),)


SCHEMA = OpSchema(
    op_type="Shape",
    inputs=(required("data", ANY),),
    outputs=(required("shape", INT64),),
    infer=_infer,
    attributes={"start": Attribute(int, default=0), "end": Attribute(int)},
    flops=moved,
    shape_only=(0,),
)
