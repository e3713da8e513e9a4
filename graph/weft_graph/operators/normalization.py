"""Normalizations: over batches, layers, groups, channels."""

from __future__ import annotations

import math

from weft_graph.attributes import as_float, as_int, as_ints
from weft_graph.dimensions import agree_all, is_unknown, quotient
from weft_graph.formals import FLOATS, optional, required, setting
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_graph.schema import Attribute, GradientContext, InferContext, MemoryOrder, OpSchema
from weft_graph.shapes.broadcasting import (
    all_normalised,
    broadcasts_to,
    check_same_dtype,
    infer_axis,
    infer_like,
    infer_unary,
    sum_to,
)
from weft_graph.shapes.flops import normalized
from weft_graph.shapes.gradients import apply, given_attributes, incoming, refusal, scalar
from weft_graph.types import DType, TensorType

# --- The type that normalizations compute their statistics in: ONNX's `stash_type` ------------------------------------


def stash_dtype(context: InferContext) -> DType:
    """What statistics are given in: the attribute's type, and float64 for an input of that type.

    They are computed in float32 at least, whatever they are given in. Raises DTypeError for a number of no float type.
    """
    number = as_int(context.attribute("stash_type"))
    stash = DTYPE_OF_NUMBER.get(number)
    if stash is None or not stash.is_float:
        raise context.dtype_error(f"stash_type {number} is no float type: 1, 10, 11 or 16")
    return DType.FLOAT64 if context.input(0).dtype == DType.FLOAT64 else stash


def check_epsilon(context: InferContext, epsilon: float) -> None:
    """Raises ShapeError where it is infinite, no number or below 0."""
    if not 0 <= epsilon < float("inf"):
        raise context.shape_error(f"epsilon {epsilon} must be finite and not below 0")


def _infer_batch_normalization(context: InferContext) -> tuple[TensorType, ...]:
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


def _batch_normalization_gradient(context: GradientContext) -> tuple[str | None, ...]:
    if context.gradient(1) is not None or context.gradient(2) is not None:
        raise refusal(context, "running statistics have no gradient")
    training = as_int(context.attribute("training_mode"))
    inputs = (incoming(context), *(context.input(index) for index in (0, 1, 3, 4)))
    attributes = {"epsilon": as_float(context.attribute("epsilon")), "training_mode": training}
    # In training the output does not depend on the running statistics, so theirs are left out.
    outputs = 5 if not training and (context.needs(3) or context.needs(4)) else 3
    gradients = context.emit("BatchNormalizationGrad", inputs, attributes, domain=WEFT_DOMAIN, outputs=outputs)
    return (*gradients, None, None)[:5]


BATCH_NORMALIZATION = OpSchema(
    op_type="BatchNormalization",
    inputs=(
        required("X", FLOATS),
        required("scale", FLOATS),
        required("B", FLOATS),
        setting(required("input_mean", FLOATS)),
        setting(required("input_var", FLOATS)),
    ),
    outputs=(required("Y", FLOATS), optional("running_mean", FLOATS), optional("running_var", FLOATS)),
    infer=_infer_batch_normalization,
    gradient=_batch_normalization_gradient,
    attributes={
        "epsilon": Attribute(float, default=1e-5),
        "momentum": Attribute(float, default=0.9),
        "training_mode": Attribute(int, default=0),
    },
    in_place=(0,),
    order=MemoryOrder.INPUT,
    work=normalized,
)
"""BatchNormalization, opset 15: by the batch's own statistics in training, by the running ones otherwise."""


def _infer_batch_normalization_grad(context: InferContext) -> tuple[TensorType, ...]:
    scale = context.input(2)
    return context.input(1), scale, scale, context.input(3), context.input(4)


BATCH_NORMALIZATION_GRAD = OpSchema(
    op_type="BatchNormalizationGrad",
    inputs=(
        required("gradient", FLOATS),
        required("X", FLOATS),
        required("scale", FLOATS),
        required("input_mean", FLOATS),
        required("input_var", FLOATS),
    ),
    outputs=(
        required("X_gradient", FLOATS),
        required("scale_gradient", FLOATS),
        required("B_gradient", FLOATS),
        optional("mean_gradient", FLOATS),
        optional("var_gradient", FLOATS),
    ),
    infer=_infer_batch_normalization_grad,
    attributes={"epsilon": Attribute(float, default=1e-5), "training_mode": Attribute(int, default=0)},
    domain=WEFT_DOMAIN,
    in_place=(1,),
    order=MemoryOrder.INPUT,
    flops=normalized,
)
"""BatchNormalizationGrad(gradient, X, scale, input_mean, input_var): gradients of X, scale, B and both statistics.

Those of the statistics are there outside training only, where the output depends on them.
"""


def _infer_layer_normalization(context: InferContext) -> tuple[TensorType, ...]:
    data, bias = context.input(0), context.optional_input(2)
    check_same_dtype(context, *range(2 if bias is None else 3))
    axis = infer_axis(context, data.rank)
    for type_ in (context.input(1), *(() if bias is None else (bias,))):
        if type_.rank > data.rank - axis or not broadcasts_to(type_.shape, data.shape):
            raise context.shape_error(f"{type_} does not broadcast to the dimensions of {data} from {axis} on")
    check_epsilon(context, as_float(context.attribute("epsilon")))
    statistics = TensorType(stash_dtype(context), (*data.shape[:axis], *(1,) * (data.rank - axis)))
    return data, statistics, statistics


def _layer_normalization_gradient(context: GradientContext) -> tuple[str | None, ...]:
    if context.gradient(1) is not None or context.gradient(2) is not None:
        raise refusal(context, "the statistics have no gradient")
    gradient = incoming(context)
    inputs = (gradient, context.input(0), context.input(1), context.output(1), context.output(2))
    attributes = given_attributes(context, ("axis", "epsilon"))
    gradients: list[str | None] = list(
        context.emit("LayerNormalizationGrad", inputs, attributes, domain=WEFT_DOMAIN, outputs=2)
    )
    if len(context.node.inputs) > 2:
        gradients.append(sum_to(context, gradient, context.input(2)) if context.needs(2) else None)
    return tuple(gradients)


LAYER_NORMALIZATION = OpSchema(
    op_type="LayerNormalization",
    inputs=(required("X", FLOATS), required("Scale", FLOATS), optional("B", FLOATS)),
    outputs=(required("Y", FLOATS), optional("Mean", FLOATS), optional("InvStdDev", FLOATS)),
    infer=_infer_layer_normalization,
    gradient=_layer_normalization_gradient,
    attributes={
        "axis": Attribute(int, default=-1),
        "epsilon": Attribute(float, default=1e-5),
        "stash_type": Attribute(int, default=1),
    },
    flops=normalized,
    in_place=(0,),
)
"""LayerNormalization: each sample's elements from `axis` on of mean 0 and variance 1, then scaled and shifted.

Statistics are computed in float32 at least, and given in `stash_type`, or in float64 for an input of that type.
"""


def _infer_layer_normalization_grad(context: InferContext) -> tuple[TensorType, ...]:
    return context.input(1), context.input(2)


LAYER_NORMALIZATION_GRAD = OpSchema(
    op_type="LayerNormalizationGrad",
    inputs=(
        required("gradient", FLOATS),
        required("X", FLOATS),
        required("Scale", FLOATS),
        required("Mean", FLOATS),
        required("InvStdDev", FLOATS),
    ),
    outputs=(required("X_gradient", FLOATS), required("Scale_gradient", FLOATS)),
    infer=_infer_layer_normalization_grad,
    attributes={"axis": Attribute(int, default=-1), "epsilon": Attribute(float, default=1e-5)},
    domain=WEFT_DOMAIN,
    in_place=(1,),
)
"""LayerNormalizationGrad(gradient, X, Scale, Mean, InvStdDev): the gradients of X and Scale.

Statistics that were given in less than float32 are computed again, with `epsilon`.
"""


def _infer_rms_normalization(context: InferContext) -> tuple[TensorType, ...]:
    data, scale = context.input(0), context.input(1)
    axis = infer_axis(context, data.rank)
    if scale.rank > data.rank - axis or not broadcasts_to(scale.shape, data.shape):
        raise context.shape_error(f"{scale} does not broadcast to the dimensions of {data} from {axis} on")
    check_epsilon(context, as_float(context.attribute("epsilon")))
    stash_dtype(context)
    return (TensorType(scale.dtype, data.shape),)


def _rms_normalization_gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), context.input(0), context.input(1))
    attributes = given_attributes(context, ("axis", "epsilon"))
    return context.emit("RMSNormalizationGrad", inputs, attributes, domain=WEFT_DOMAIN, outputs=2)


RMS_NORMALIZATION = OpSchema(
    op_type="RMSNormalization",
    inputs=(required("X", FLOATS), required("scale", FLOATS)),
    outputs=(required("Y", FLOATS),),
    infer=_infer_rms_normalization,
    gradient=_rms_normalization_gradient,
    attributes={
        "axis": Attribute(int, default=-1),
        "epsilon": Attribute(float, default=1e-5),
        "stash_type": Attribute(int, default=1),
    },
    flops=normalized,
)
"""RMSNormalization: each sample's elements from `axis` on over the root of their mean square, then scaled.

Computed in float32 at least. The output is of the scale's element type. Zhang and Sennrich 2019.
"""


def _infer_rms_normalization_grad(context: InferContext) -> tuple[TensorType, ...]:
    return context.input(1), context.input(2)


RMS_NORMALIZATION_GRAD = OpSchema(
    op_type="RMSNormalizationGrad",
    inputs=(required("gradient", FLOATS), required("X", FLOATS), required("scale", FLOATS)),
    outputs=(required("X_gradient", FLOATS), required("scale_gradient", FLOATS)),
    infer=_infer_rms_normalization_grad,
    attributes={"axis": Attribute(int, default=-1), "epsilon": Attribute(float, default=1e-5)},
    domain=WEFT_DOMAIN,
)
"""RMSNormalizationGrad(gradient, X, scale): the gradients of X and scale; the root is computed again."""


def _infer_group_normalization(context: InferContext) -> tuple[TensorType, ...]:
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


def _group_normalization_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, inputs = incoming(context), (context.input(0), context.input(1))
    attributes: dict[str, AttributeValue] = {
        "epsilon": as_float(context.attribute("epsilon")),
        "num_groups": as_int(context.attribute("num_groups")),
    }
    results = context.emit("GroupNormalizationGrad", (gradient, *inputs), attributes, domain=WEFT_DOMAIN, outputs=3)
    return tuple(results)


GROUP_NORMALIZATION = OpSchema(
    op_type="GroupNormalization",
    inputs=(required("X", FLOATS), required("scale", FLOATS), required("bias", FLOATS)),
    outputs=(required("Y", FLOATS),),
    infer=_infer_group_normalization,
    gradient=_group_normalization_gradient,
    attributes={
        "epsilon": Attribute(float, default=1e-5),
        "num_groups": Attribute(int, required=True),
        "stash_type": Attribute(int, default=1),
    },
    flops=normalized,
)
"""GroupNormalization, opset 21: each sample's groups of channels of mean 0 and variance 1, then scaled and shifted.

Scale and bias have a number for each channel; in opset 18 they had one for each group. Statistics are computed in
float32 at least, whatever `stash_type` says.
"""


def _infer_group_normalization_grad(context: InferContext) -> tuple[TensorType, ...]:
    return context.input(1), context.input(2), context.input(2)


GROUP_NORMALIZATION_GRAD = OpSchema(
    op_type="GroupNormalizationGrad",
    inputs=(required("gradient", FLOATS), required("X", FLOATS), required("scale", FLOATS)),
    outputs=(required("X_gradient", FLOATS), required("scale_gradient", FLOATS), required("bias_gradient", FLOATS)),
    infer=_infer_group_normalization_grad,
    attributes={"epsilon": Attribute(float, default=1e-5), "num_groups": Attribute(int, required=True)},
    domain=WEFT_DOMAIN,
)
"""GroupNormalizationGrad(gradient, X, scale): the gradients of X, scale and bias; `num_groups` 0 is one a channel."""


def _infer_instance_normalization(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    check_same_dtype(context, 0, 1, 2)
    if data.rank < 3:
        raise context.shape_error(f"the input must be (batch, channels, spatial ...), got {data}")
    for index in (1, 2):
        if not agree_all(context.input(index).shape, data.shape[1:2]):
            raise context.shape_error(f"input {index} {context.input(index)} must have one number a channel of {data}")
    check_epsilon(context, as_float(context.attribute("epsilon")))
    return (data,)


def _instance_normalization_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, inputs = incoming(context), (context.input(0), context.input(1))
    attributes: dict[str, AttributeValue] = {"epsilon": as_float(context.attribute("epsilon")), "num_groups": 0}
    results = context.emit("GroupNormalizationGrad", (gradient, *inputs), attributes, domain=WEFT_DOMAIN, outputs=3)
    return tuple(results)


INSTANCE_NORMALIZATION = OpSchema(
    op_type="InstanceNormalization",
    inputs=(required("input", FLOATS), required("scale", FLOATS), required("B", FLOATS)),
    outputs=(required("output", FLOATS),),
    infer=_infer_instance_normalization,
    gradient=_instance_normalization_gradient,
    attributes={"epsilon": Attribute(float, default=1e-5)},
    flops=normalized,
)
"""InstanceNormalization: each sample's channels of mean 0 and variance 1, then scaled and shifted."""


def _infer_lp_normalization(context: InferContext) -> tuple[TensorType, ...]:
    infer_axis(context, context.input(0).rank)
    if context.attribute("p") not in {1, 2}:
        raise context.shape_error(f"p is {context.attribute('p')}, which is none of 1, 2")
    return (context.input(0),)


def _lp_normalization_gradient(context: GradientContext) -> tuple[str | None, ...]:
    x, output = context.input(0), context.output(0)
    along: dict[str, AttributeValue] = {"axes": (as_int(context.attribute("axis")),), "keepdims": 1}
    by_square = context.attribute("p") == 2
    norm = apply(context, "ReduceL2" if by_square else "ReduceL1", x, **along)
    is_zero = apply(context, "Equal", norm, scalar(context, 0, norm))
    share = apply(context, "Div", incoming(context), apply(context, "Where", is_zero, scalar(context, 1, norm), norm))
    projected = apply(context, "ReduceSum", apply(context, "Mul", share, output), **along)
    # The norm's slope is the output itself for p 2, and the sign for p 1.
    slope = output if by_square else apply(context, "Sign", x)
    rest = apply(context, "Sub", share, apply(context, "Mul", slope, projected))
    return (apply(context, "Where", is_zero, scalar(context, 0, norm), rest),)


LP_NORMALIZATION = OpSchema(
    op_type="LpNormalization",
    inputs=(required("input", FLOATS),),
    outputs=(required("output", FLOATS),),
    infer=_infer_lp_normalization,
    gradient=_lp_normalization_gradient,
    attributes={"axis": Attribute(int, default=-1), "p": Attribute(int, default=2)},
    flops=normalized,
)
"""LpNormalization: the input over its norm along `axis`, the sum of absolute values or, for `p` 2, the root of squares.

Where the norm is 0, output and gradient are 0.
"""


MEAN_VARIANCE_NORMALIZATION_ATTRIBUTES = {"axes": Attribute(tuple, default=(0, 2, 3))}


def _infer_mean_variance_normalization(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    try:
        all_normalised(as_ints(context.attribute("axes")), data.rank)
    except ValueError as error:
        raise context.shape_error(f"{error}; the input is {data}") from None
    return (data,)


def _mean_variance_normalization_gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), context.input(0))
    attributes = given_attributes(context, MEAN_VARIANCE_NORMALIZATION_ATTRIBUTES)
    return context.emit("MeanVarianceNormalizationGrad", inputs, attributes, domain=WEFT_DOMAIN)


MEAN_VARIANCE_NORMALIZATION = OpSchema(
    op_type="MeanVarianceNormalization",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=_infer_mean_variance_normalization,
    gradient=_mean_variance_normalization_gradient,
    attributes=MEAN_VARIANCE_NORMALIZATION_ATTRIBUTES,
    flops=normalized,
)
"""MeanVarianceNormalization: the elements along `axes` less their mean, over their deviation and 1e-9.

What does not vary is 0. There is no scale, no shift and no epsilon to set.
"""


MEAN_VARIANCE_NORMALIZATION_GRAD = OpSchema(
    op_type="MeanVarianceNormalizationGrad",
    inputs=(required("gradient", FLOATS), required("X", FLOATS)),
    outputs=(required("X_gradient", FLOATS),),
    infer=infer_unary,
    attributes=MEAN_VARIANCE_NORMALIZATION_ATTRIBUTES,
    domain=WEFT_DOMAIN,
)
"""MeanVarianceNormalizationGrad(gradient, X): the gradient of X; 0 where nothing varies."""


def _infer_lrn(context: InferContext) -> tuple[TensorType, ...]:
    data, size = context.input(0), as_int(context.attribute("size"))
    if data.rank < 2 or size < 1:
        raise context.shape_error(f"the input must be (batch, channels, ...) and size {size} at least 1, got {data}")
    return (data,)


def _lrn_gradient(context: GradientContext) -> tuple[str | None, ...]:
    attributes = given_attributes(context, ("alpha", "beta", "bias", "size"))
    return context.emit("LRNGrad", (incoming(context), context.input(0)), attributes, domain=WEFT_DOMAIN)


LRN = OpSchema(
    op_type="LRN",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=_infer_lrn,
    gradient=_lrn_gradient,
    attributes={
        "alpha": Attribute(float, default=1e-4),
        "beta": Attribute(float, default=0.75),
        "bias": Attribute(float, default=1.0),
        "size": Attribute(int, required=True),
    },
    flops=normalized,
)
"""LRN: each element over a power of the mean square of `size` channels around it. Krizhevsky et al. 2012."""


LRN_GRAD = OpSchema(
    op_type="LRNGrad",
    inputs=(required("gradient", FLOATS), required("X", FLOATS)),
    outputs=(required("X_gradient", FLOATS),),
    infer=infer_like(1),
    attributes={
        "alpha": Attribute(float, default=1e-4),
        "beta": Attribute(float, default=0.75),
        "bias": Attribute(float, default=1.0),
        "size": Attribute(int, required=True),
    },
    domain=WEFT_DOMAIN,
)
"""LRNGrad(gradient, X): the gradient of X; LRN's attributes."""
