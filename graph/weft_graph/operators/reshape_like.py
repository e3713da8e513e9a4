"""ReshapeLike(data, like): the elements of data, in their order, in the shape of `like`."""

from __future__ import annotations

from weft_graph.dimensions.dims import agree, product
from weft_graph.formals import ANY, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import InferContext, OpSchema
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, like = context.input(0), context.input(1)
    if not agree(product(data.shape), product(like.shape)):
        raise context.shape_error(f"{data} and {like} differ in their number of elements")
    return (TensorType(data.dtype, like.shape),)


SCHEMA = OpSchema(
    op_type="ReshapeLike",
    inputs=(required("data", ANY), required("like", ANY)),
    outputs=(required("reshaped", ANY),),
    infer=_infer,
    domain=WEFT_DOMAIN,
    views=True,
    shape_only=(1,),
)
