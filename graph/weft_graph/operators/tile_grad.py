"""TileGrad(gradient, input): the sum of all copies' gradients."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import InferContext, OpSchema
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (context.input(1),)


SCHEMA = OpSchema(
    op_type="TileGrad",
    inputs=(required("gradient", FLOATS), required("input", FLOATS)),
    outputs=(required("input_gradient", FLOATS),),
    infer=_infer,
    domain=WEFT_DOMAIN,
    shape_only=(1,),
)
