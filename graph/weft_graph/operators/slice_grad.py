"""SliceGrad(gradient, data, starts, ends, axes, steps): the gradient where Slice took from, 0 elsewhere."""

from __future__ import annotations

from weft_graph.formals import FLOATS, INDICES, optional, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (context.input(1),)


SCHEMA = OpSchema(
    op_type="SliceGrad",
    inputs=(
        required("gradient", FLOATS),
        required("data", FLOATS),
        optional("starts", INDICES),
        optional("ends", INDICES),
        optional("axes", INDICES),
        optional("steps", INDICES),
    ),
    outputs=(required("data_gradient", FLOATS),),
    infer=_infer,
    attributes={"starts": Attribute(tuple), "ends": Attribute(tuple), "axes": Attribute(tuple)},
    domain=WEFT_DOMAIN,
    shape_only=(1,),
)
