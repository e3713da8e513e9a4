"""Conv: the convolution of (batch, channels, spatial ...) with weights (features, channels / group, kernel ...)."""

from __future__ import annotations

import numpy as np

from weft_graph.attributes import as_int
from weft_graph.formals import FLOATS, optional, required
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.schema import Attribute, GradientContext, InferContext, MemoryOrder, OpSchema
from weft_graph.shapes.broadcasting import check_same_dtype
from weft_graph.shapes.dims import agree, agree_all
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.windows import WINDOW_ATTRIBUTES, infer_windows
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, weights, bias = context.input(0), context.input(1), context.optional_input(2)
    check_same_dtype(context, *range(2 if bias is None else 3))
    group = as_int(context.attribute("group"))
    if weights.rank != data.rank or data.rank < 3:
        raise context.shape_error(f"input {data} and weights {weights} must have one rank, at least 3")
    channels, features = weights.shape[1], weights.shape[0]
    if not isinstance(channels, int) or not isinstance(features, int) or group < 1 or features % group:
        raise context.shape_error(f"{features} features of weights {weights} do not fall into {group} groups")
    if not agree(data.shape[1], channels * group):
        raise context.shape_error(
            f"input {data} has {data.shape[1]} channels, weights {weights} in {group} groups take {channels * group}"
        )
    if bias is not None and not agree_all(bias.shape, (features,)):
        raise context.shape_error(f"bias {bias} must have one number for each of the {features} features")
    windows = infer_windows(context, data, weights.shape[2:])
    return (TensorType(data.dtype, (data.shape[0], features, *windows.count)),)


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
)
