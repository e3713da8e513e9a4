"""SumTo(data, like): data summed over the dimensions along which `like` broadcasts to it; the shape of `like`."""

from __future__ import annotations

from weft_graph.formals import ANY, NUMBERS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import InferContext, OpSchema
from weft_graph.shapes.broadcasting import broadcasts_to
from weft_graph.shapes.viewing import same
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, like = context.input(0), context.input(1)
    if not broadcasts_to(like.shape, data.shape):
        raise context.shape_error(f"{like} does not broadcast to {data}")
    return (TensorType(data.dtype, like.shape),)


SCHEMA = OpSchema(
    op_type="SumTo",
    inputs=(required("data", NUMBERS), required("like", ANY)),
    outputs=(required("sum", NUMBERS),),
    infer=_infer,
    domain=WEFT_DOMAIN,
    views=same,
    shape_only=(1,),
)
