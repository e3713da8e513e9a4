"""Conv: the convolution of (batch, channels, spatial ...) with weights (features, channels / group, kernel ...)."""

from __future__ import annotations

import numpy as np

from weft_graph.formals import FLOATS, optional, required
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.schema import Attribute, GradientContext, InferContext, MemoryOrder, OpSchema
from weft_graph.shapes.broadcasting import check_same_dtype
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.products import infer_convolution
from weft_graph.shapes.spatial_flops import convolved
from weft_graph.shapes.windows import WINDOW_ATTRIBUTES
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, weights, bias = context.input(0), context.input(1), context.optional_input(2)
    check_same_dtype(context, *range(2 if bias is None else 3))
    return (TensorType(data.dtype, infer_convolution(context, data, weights, bias)),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, data, weights = incoming(context), context.input(0), context.input(1)
    attributes: dict[str, AttributeValue] = {}
    for name in CONV_ATTRIBUTES:
        value = context.attribute(name)
        if value is not None:
            attributes[name] = value
    gradients: list[str | None] = [None] * len(context.node.inputs)
    inputs = (gradient, data, weights)
    if context.needs(0):
        (gradients[0],) = context.emit("ConvInputGrad", inputs, attributes, domain=WEFT_DOMAIN)
    if context.needs(1):
        (gradients[1],) = context.emit("ConvWeightGrad", inputs, attributes, domain=WEFT_DOMAIN)
    if len(gradients) > 2 and context.needs(2):
        rank = context.type_of(data).rank
        axes = context.constant(np.array([0, *range(2, rank)], dtype=np.int64))
        (gradients[2],) = context.emit("ReduceSum", (gradient, axes), {"keepdims": 0})
    return tuple(gradients)


CONV_ATTRIBUTES = {**WINDOW_ATTRIBUTES, "group": Attribute(int, default=1)}

SCHEMA = OpSchema(
    op_type="Conv",
    inputs=(required("X", FLOATS), required("W", FLOATS), optional("B", FLOATS)),
    outputs=(required("Y", FLOATS),),
    infer=_infer,
    gradient=_gradient,
    attributes=CONV_ATTRIBUTES,
    order=MemoryOrder.CHANNELS,
    work=convolved,
)
