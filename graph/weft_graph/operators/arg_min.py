"""ArgMin: the index of the smallest element along `axis`; the first of equals, or the last."""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.formals import INT64, NUMBERS, required
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.shapes.axes import infer_axis
from weft_graph.shapes.flops import reduced
from weft_graph.types import DType, TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    axis = infer_axis(context, data.rank)
    if data.shape[axis] == 0:
        raise context.shape_error(f"dimension {axis} of {data} is empty and has no smallest element")
    kept = (1,) if as_int(context.attribute("keepdims")) else ()
    return (TensorType(DType.INT64, (*data.shape[:axis], *kept, *data.shape[axis + 1 :])),)


SCHEMA = OpSchema(
    op_type="ArgMin",
    inputs=(required("data", NUMBERS),),
    outputs=(required("reduced", INT64),),
    infer=_infer,
    attributes={
        "axis": Attribute(int, default=0),
        "keepdims": Attribute(int, default=1),
        "select_last_index": Attribute(int, default=0),
    },
    flops=reduced,
)
