"""GatherNDGrad: the data's gradient, with gradients of one slice added in the order of the indices."""

from __future__ import annotations

from weft_graph.formals import FLOATS, INDICES, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (context.input(1),)


SCHEMA = OpSchema(
    op_type="GatherNDGrad",
    inputs=(required("gradient", FLOATS), required("data", FLOATS), required("indices", INDICES)),
    outputs=(required("data_gradient", FLOATS),),
    infer=_infer,
    attributes={"batch_dims": Attribute(int, default=0)},
    domain=WEFT_DOMAIN,
)
