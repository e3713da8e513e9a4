"""InstanceNormalization: each sample's channels of mean 0 and variance 1, then scaled and shifted."""

from __future__ import annotations

from weft_graph.attributes import as_float
from weft_graph.dimensions.dims import agree_all
from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.broadcasting import check_same_dtype
from weft_graph.shapes.flops import normalized
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.stash import check_epsilon
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    check_same_dtype(context, 0, 1, 2)
    if data.rank < 3:
        raise context.shape_error(f"the input must be (batch, channels, spatial ...), got {data}")
    for index in (1, 2):
        if not agree_all(context.input(index).shape, data.shape[1:2]):
            raise context.shape_error(f"input {index} {context.input(index)} must have one number a channel of {data}")
    check_epsilon(context, as_float(context.attribute("epsilon")))
    return (data,)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, inputs = incoming(context), (context.input(0), context.input(1))
    attributes: dict[str, AttributeValue] = {"epsilon": as_float(context.attribute("epsilon")), "num_groups": 0}
    results = context.emit("GroupNormalizationGrad", (gradient, *inputs), attributes, domain=WEFT_DOMAIN, outputs=3)
    return tuple(results)


SCHEMA = OpSchema(
    op_type="InstanceNormalization",
    inputs=(required("input", FLOATS), required("scale", FLOATS), required("B", FLOATS)),
    outputs=(required("output", FLOATS),),
    infer=_infer,
    gradient=_gradient,
    attributes={"epsilon": Attribute(float, default=1e-5)},
    flops=normalized,
)
