"""GroupNormalization, opset 21: each sample's groups of channels of mean 0 and variance 1, then scaled and shifted.

Scale and bias have a number for each channel; in opset 18 they had one for each group. Statistics are computed in
float32 at least, whatever `stash_type` says.
"""

from __future__ import annotations

from weft_graph.attributes import as_float, as_int
from weft_graph.dimensions.dims import agree_all, is_unknown, quotient
from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.broadcasting import check_same_dtype
from weft_graph.shapes.flops import normalized
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.stash import check_epsilon, stash_dtype
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    check_same_dtype(context, 0, 1, 2)
    if data.rank < 2:
        raise context.shape_error(f"the input must be (batch, channels, ...), got {data}")
    for index in (1, 2):
        if not agree_all(context.input(index).shape, data.shape[1:2]):
            raise context.shape_error(f"input {index} {context.input(index)} must have one number a channel of {data}")
    groups = as_int(context.attribute("num_groups"))
    if groups < 1 or (quotient(data.shape[1:2], (groups,)) is None and not is_unknown(data.shape[1])):
        raise context.shape_error(f"the channels of {data} do not fall into {groups} groups")
    check_epsilon(context, as_float(context.attribute("epsilon")))
    stash_dtype(context)
    return (data,)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, inputs = incoming(context), (context.input(0), context.input(1))
    attributes: dict[str, AttributeValue] = {
        "epsilon": as_float(context.attribute("epsilon")),
        "num_groups": as_int(context.attribute("num_groups")),
    }
    results = context.emit("GroupNormalizationGrad", (gradient, *inputs), attributes, domain=WEFT_DOMAIN, outputs=3)
    return tuple(results)


SCHEMA = OpSchema(
    op_type="GroupNormalization",
    inputs=(required("X", FLOATS), required("scale", FLOATS), required("bias", FLOATS)),
    outputs=(required("Y", FLOATS),),
    infer=_infer,
    gradient=_gradient,
    attributes={
        "epsilon": Attribute(float, default=1e-5),
        "num_groups": Attribute(int, required=True),
        "stash_type": Attribute(int, default=1),
    },
    flops=normalized,
)
