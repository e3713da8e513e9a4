"""EyeLike: a matrix of the shape of the input, 1 on diagonal `k` and 0 elsewhere."""

from __future__ import annotations

from weft_graph.formals import BOOLEANS, NUMBERS, required
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.shapes.casting import dtype_attribute
from weft_graph.shapes.flops import moved
from weft_graph.shapes.flow import flat
from weft_graph.types import TensorType

_DTYPES = NUMBERS | BOOLEANS


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    if data.rank != 2:
        raise context.shape_error(f"the input must be a matrix, got {data}")
    dtype = data.dtype if context.attribute("dtype") is None else dtype_attribute(context, "dtype")
    if dtype not in _DTYPES:
        raise context.dtype_error(f"dtype is {dtype}, which is none of {', '.join(sorted(_DTYPES))}")
    return (TensorType(dtype, data.shape),)


SCHEMA = OpSchema(
    op_type="EyeLike",
    inputs=(required("input", _DTYPES),),
    outputs=(required("output", _DTYPES),),
    infer=_infer,
    gradient=flat,
    attributes={"dtype": Attribute(int), "k": Attribute(int, default=0)},
    flops=moved,
)
