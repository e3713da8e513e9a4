"""PadGrad(gradient, data, pads, axes): each element's gradient and those of its repetitions; Pad's attributes."""

from __future__ import annotations

from weft_graph.formals import FLOATS, INDICES, INT64, optional, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (context.input(1),)


SCHEMA = OpSchema(
    op_type="PadGrad",
    inputs=(required("gradient", FLOATS), required("data", FLOATS), optional("pads", INT64), optional("axes", INDICES)),
    outputs=(required("data_gradient", FLOATS),),
    infer=_infer,
    attributes={"mode": Attribute(str, default="constant"), "pads": Attribute(tuple)},
    domain=WEFT_DOMAIN,
    shape_only=(1,),
)
