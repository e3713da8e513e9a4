"""BatchNormalization, opset 15: by the batch's own statistics in training, by the running ones otherwise."""

from __future__ import annotations

import math

from weft_graph.attributes import as_float, as_int
from weft_graph.dimensions.dims import agree_all
from weft_graph.formals import FLOATS, optional, required, setting
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, MemoryOrder, OpSchema
from weft_graph.shapes.flops import normalized
from weft_graph.shapes.flow import incoming, refusal
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, mean, variance = context.input(0), context.input(3), context.input(4)
    if data.rank < 2:
        raise context.shape_error(f"the input must be (batch, channels, spatial ...), got {data}")
    for index in range(1, 5):
        if not agree_all(context.input(index).shape, data.shape[1:2]):
            raise context.shape_error(
                f"input {index} {context.input(index)} must have one number for each channel of {data}"
            )
    epsilon, momentum = as_float(context.attribute("epsilon")), as_float(context.attribute("momentum"))
    if not 0 <= epsilon < math.inf or not 0 <= momentum <= 1:
        raise context.shape_error(
            f"epsilon {epsilon} must be finite and not below 0, momentum {momentum} within 0 to 1"
        )
    return data, mean, variance


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    if context.gradient(1) is not None or context.gradient(2) is not None:
        raise refusal(context, "running statistics have no gradient")
    training = as_int(context.attribute("training_mode"))
    inputs = (incoming(context), *(context.input(index) for index in (0, 1, 3, 4)))
    attributes = {"epsilon": as_float(context.attribute("epsilon")), "training_mode": training}
    # In training the output does not depend on the running statistics, so theirs are left out.
    outputs = 5 if not training and (context.needs(3) or context.needs(4)) else 3
    gradients = context.emit("BatchNormalizationGrad", inputs, attributes, domain=WEFT_DOMAIN, outputs=outputs)
    return (*gradients, None, None)[:5]


SCHEMA = OpSchema(
    op_type="BatchNormalization",
    inputs=(
        required("X", FLOATS),
        required("scale", FLOATS),
        required("B", FLOATS),
        setting(required("input_mean", FLOATS)),
        setting(required("input_var", FLOATS)),
    ),
    outputs=(required("Y", FLOATS), optional("running_mean", FLOATS), optional("running_var", FLOATS)),
    infer=_infer,
    gradient=_gradient,
    attributes={
        "epsilon": Attribute(float, default=1e-5),
        "momentum": Attribute(float, default=0.9),
        "training_mode": Attribute(int, default=0),
    },
    in_place=(0,),
    order=MemoryOrder.INPUT,
    work=normalized,
)
