"""Convolutions, and what gathers windows for them."""

from __future__ import annotations

import math

import numpy as np

from weft_graph.attributes import as_int
from weft_graph.dimensions import agree, agree_all, product, quotient
from weft_graph.formals import FLOATS, INT64, NUMBERS, optional, required
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.schema import Attribute, GradientContext, InferContext, MemoryOrder, OpSchema
from weft_graph.shapes.arranging import blocks_of
from weft_graph.shapes.broadcasting import check_same_dtype, infer_like
from weft_graph.shapes.flops import convolution_gradient, convolved, moved, reduced, spread
from weft_graph.shapes.gradients import apply, given_attributes, incoming
from weft_graph.shapes.windows import WINDOW_ATTRIBUTES, Windows, infer_convolution, infer_windows, transposed_windows
from weft_graph.types import Shape, TensorType


def _infer_conv(context: InferContext) -> tuple[TensorType, ...]:
    data, weights, bias = context.input(0), context.input(1), context.optional_input(2)
    check_same_dtype(context, *range(2 if bias is None else 3))
    return (TensorType(data.dtype, infer_convolution(context, data, weights, bias)),)


def _conv_gradient(context: GradientContext) -> tuple[str | None, ...]:
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


CONV = OpSchema(
    op_type="Conv",
    inputs=(required("X", FLOATS), required("W", FLOATS), optional("B", FLOATS)),
    outputs=(required("Y", FLOATS),),
    infer=_infer_conv,
    gradient=_conv_gradient,
    attributes=CONV_ATTRIBUTES,
    order=MemoryOrder.CHANNELS,
    work=convolved,
    product=True,
)
"""Conv: the convolution of (batch, channels, spatial ...) with weights (features, channels / group, kernel ...)."""


CONV_INPUT_GRAD = OpSchema(
    op_type="ConvInputGrad",
    inputs=(required("gradient", FLOATS), required("input", FLOATS), required("weights", FLOATS)),
    outputs=(required("input_gradient", FLOATS),),
    infer=infer_like(1),
    attributes={**WINDOW_ATTRIBUTES, "group": Attribute(int, default=1)},
    domain=WEFT_DOMAIN,
    order=MemoryOrder.CHANNELS,
    flops=convolution_gradient,
    shape_only=(1,),
)
"""ConvInputGrad(gradient, input, weights): the gradient of Conv's input; the attributes are Conv's."""


CONV_WEIGHT_GRAD = OpSchema(
    op_type="ConvWeightGrad",
    inputs=(required("gradient", FLOATS), required("input", FLOATS), required("weights", FLOATS)),
    outputs=(required("weights_gradient", FLOATS),),
    infer=infer_like(2),
    attributes={**WINDOW_ATTRIBUTES, "group": Attribute(int, default=1)},
    domain=WEFT_DOMAIN,
    flops=convolution_gradient,
    shape_only=(2,),
)
"""ConvWeightGrad(gradient, input, weights): the gradient of Conv's weights; the attributes are Conv's."""


def _windows(context: InferContext, data: TensorType, weights: TensorType) -> Windows:
    spatial, kernel = data.shape[2:], weights.shape[2:]
    if len(_numbers(spatial)) < len(spatial) or len(_numbers(kernel)) < len(kernel):
        raise context.shape_error(f"spatial dimensions must be numbers, got {data} and {weights}")
    try:
        return transposed_windows(_numbers(spatial), context.attribute, _numbers(kernel))
    except ValueError as error:
        raise context.shape_error(str(error)) from None


def _numbers(shape: Shape) -> tuple[int, ...]:
    return tuple(dim for dim in shape if isinstance(dim, int))


def _infer_conv_transpose(context: InferContext) -> tuple[TensorType, ...]:
    data, weights, bias = context.input(0), context.input(1), context.optional_input(2)
    check_same_dtype(context, *range(2 if bias is None else 3))
    group = as_int(context.attribute("group"))
    if weights.rank != data.rank or data.rank < 3:
        raise context.shape_error(f"input {data} and weights {weights} must have one rank, at least 3")
    channels, each = weights.shape[0], weights.shape[1]
    if not isinstance(channels, int) or not isinstance(each, int) or group < 1 or channels % group:
        raise context.shape_error(f"{channels} channels of weights {weights} do not fall into {group} groups")
    if not agree(data.shape[1], channels):
        raise context.shape_error(f"input {data} has {data.shape[1]} channels, weights {weights} take {channels}")
    if bias is not None and not agree_all(bias.shape, (each * group,)):
        raise context.shape_error(f"bias {bias} must have one number for each of the {each * group} features")
    return (TensorType(data.dtype, (data.shape[0], each * group, *_windows(context, data, weights).size)),)


def _conv_transpose_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, data, weights = incoming(context), context.input(0), context.input(1)
    shape, kernel = context.type_of(data).shape[2:], context.type_of(weights).shape[2:]
    windows = transposed_windows(_numbers(shape), context.attribute, _numbers(kernel))
    # A convolution of the output with these leads back to the input.
    attributes: dict[str, AttributeValue] = {
        "dilations": windows.dilations,
        "group": as_int(context.attribute("group")),
        "pads": windows.begin + windows.end,
        "strides": windows.strides,
    }
    gradients: list[str | None] = [None] * len(context.node.inputs)
    if context.needs(0):
        (gradients[0],) = context.emit("Conv", (gradient, weights), attributes)
    if context.needs(1):
        (gradients[1],) = context.emit("ConvWeightGrad", (data, gradient, weights), attributes, domain=WEFT_DOMAIN)
    if context.needs(2):
        axes: dict[str, AttributeValue] = {"axes": (0, *range(2, 2 + len(shape))), "keepdims": 0}
        (gradients[2],) = context.emit("ReduceSum", (gradient,), axes)
    return tuple(gradients)


CONV_TRANSPOSE = OpSchema(
    op_type="ConvTranspose",
    inputs=(required("X", FLOATS), required("W", FLOATS), optional("B", FLOATS)),
    outputs=(required("Y", FLOATS),),
    infer=_infer_conv_transpose,
    gradient=_conv_transpose_gradient,
    attributes={
        **WINDOW_ATTRIBUTES,
        "group": Attribute(int, default=1),
        "output_padding": Attribute(tuple),
        "output_shape": Attribute(tuple),
    },
    order=MemoryOrder.CHANNELS,
    work=spread,
    product=True,
)
"""ConvTranspose: each element spread by weights (channels, features / group, kernel ...).

The input is (batch, channels, spatial ...). It is the gradient of Conv's input, as a layer.
"""


DEFORM_CONV_DEFORM_ATTRIBUTES = {
    **{name: attribute for name, attribute in WINDOW_ATTRIBUTES.items() if name != "auto_pad"},
    "group": Attribute(int, default=1),
    "offset_group": Attribute(int, default=1),
}


def _infer_deform_conv(context: InferContext) -> tuple[TensorType, ...]:
    data, weights, bias = context.input(0), context.input(1), context.optional_input(3)
    check_same_dtype(context, *(place for place, name in enumerate(context.node.inputs) if name))
    features = _check_groups(context, data, weights)
    if bias is not None and bias.shape != (features,):
        raise context.shape_error(f"bias {bias} must have one number for each of the {features} features")
    windows = infer_windows(context, data, weights.shape[2:])
    _check_places(context, data.shape[0], windows)
    return (TensorType(data.dtype, (data.shape[0], features, *windows.count)),)


def _check_groups(context: InferContext, data: TensorType, weights: TensorType) -> int:
    """The number of features. Raises ShapeError where channels or features do not fall into groups."""
    group, offset_group = as_int(context.attribute("group")), as_int(context.attribute("offset_group"))
    if weights.rank != data.rank or data.rank < 3:
        raise context.shape_error(f"input {data} and weights {weights} must have one rank, at least 3")
    features, each = weights.shape[:2]
    if not isinstance(each, int) or not isinstance(features, int) or group < 1 or features % group:
        raise context.shape_error(f"{features} features of weights {weights} do not fall into {group} groups")
    if data.shape[1] != each * group:
        raise context.shape_error(f"input {data} has {data.shape[1]} channels, weights {weights} take {each * group}")
    if offset_group < 1 or (each * group) % offset_group:
        raise context.shape_error(f"{each * group} channels do not fall into {offset_group} groups of offsets")
    return features


def _check_places(context: InferContext, batch: int | str, windows: Windows) -> None:
    """Raises ShapeError where the offset or the mask has not a number for each place of each window."""
    groups = as_int(context.attribute("offset_group")) * math.prod(windows.kernel)
    for index, name, each in ((2, "offset", len(windows.size)), (4, "mask", 1)):
        type_ = context.optional_input(index)
        wanted: Shape = (batch, groups * each, *windows.count)
        if type_ is None:
            continue
        if type_.rank != len(wanted) or not all(agree(a, b) for a, b in zip(type_.shape, wanted, strict=True)):
            raise context.shape_error(f"{name} {type_} must be {list(wanted)}")


def _deform_conv_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, given = incoming(context), context.node.inputs
    mask = given[4] if len(given) > 4 else ""
    inputs = (gradient, *given[:3], *((mask,) if mask else ()))
    found = context.emit(
        "DeformConvGrad",
        inputs,
        given_attributes(context, DEFORM_CONV_DEFORM_ATTRIBUTES),
        domain=WEFT_DOMAIN,
        outputs=4 if mask else 3,
    )
    gradients: list[str | None] = [*found[:3], None, found[3] if mask else None]
    if context.needs(3):
        axes: dict[str, AttributeValue] = {"axes": (0, *range(2, context.type_of(gradient).rank)), "keepdims": 0}
        gradients[3] = apply(context, "ReduceSum", gradient, **axes)
    return tuple(gradients[: len(given)])


DEFORM_CONV = OpSchema(
    op_type="DeformConv",
    inputs=(
        required("X", FLOATS),
        required("W", FLOATS),
        required("offset", FLOATS),
        optional("B", FLOATS),
        optional("mask", FLOATS),
    ),
    outputs=(required("Y", FLOATS),),
    infer=_infer_deform_conv,
    gradient=_deform_conv_gradient,
    attributes=DEFORM_CONV_DEFORM_ATTRIBUTES,
    flops=convolved,
)
"""DeformConv: a convolution each place of whose windows is moved by an offset and weighed by a mask.

Dai et al. 2017, Zhu et al. 2019. Between elements it reads linearly, and 0 outside.
"""


def _infer_deform_conv_grad(context: InferContext) -> tuple[TensorType, ...]:
    mask = context.optional_input(4)
    return (context.input(1), context.input(2), context.input(3), *(() if mask is None else (mask,)))


DEFORM_CONV_GRAD = OpSchema(
    op_type="DeformConvGrad",
    inputs=(
        required("gradient", FLOATS),
        required("X", FLOATS),
        required("W", FLOATS),
        required("offset", FLOATS),
        optional("mask", FLOATS),
    ),
    outputs=(
        required("X_gradient", FLOATS),
        optional("W_gradient", FLOATS),
        optional("offset_gradient", FLOATS),
        optional("mask_gradient", FLOATS),
    ),
    infer=_infer_deform_conv_grad,
    attributes=DEFORM_CONV_DEFORM_ATTRIBUTES,
    domain=WEFT_DOMAIN,
    flops=convolution_gradient,
)
"""DeformConvGrad(gradient, X, W, offset, mask): the gradients of X, W, offset and mask; DeformConv's attributes."""


COL2_IM_BLOCK_ATTRIBUTES = {"dilations": Attribute(tuple), "pads": Attribute(tuple), "strides": Attribute(tuple)}


def _infer_col2_im(context: InferContext) -> tuple[TensorType, ...]:
    data, image, block = context.input(0), context.dims(1), context.dims(2)
    if data.rank != 3 or image is None or block is None or len(image) != len(block):
        raise context.shape_error(
            "the input must be (batch, channels * places, blocks), image_shape and block_shape as long lists, got "
            f"{data}, {context.input(1)}, {context.input(2)}"
        )
    sizes = tuple(dim for dim in image if isinstance(dim, int))
    kernel = tuple(dim for dim in block if isinstance(dim, int))
    if len(kernel) < len(block):
        return (TensorType(data.dtype, (data.shape[0], context.unknown(), *image)),)
    channels = quotient((data.shape[1],), kernel) if min(kernel, default=0) > 0 else None
    if channels is None:
        raise context.shape_error(f"{data.shape[1]} rows of {data} are not whole blocks of {kernel}")
    if len(sizes) == len(image):
        try:
            count = math.prod(blocks_of(sizes, kernel, context.attribute).count)
        except ValueError as error:
            raise context.shape_error(f"{error}; the input is {data}") from None
        if not agree(data.shape[2], product((count,))):
            raise context.shape_error(f"{data} has {data.shape[2]} blocks, and an image of {sizes} has {count}")
    return (TensorType(data.dtype, (data.shape[0], channels, *image)),)


def _col2_im_gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), context.input(0), context.input(1), context.input(2))
    attributes = given_attributes(context, COL2_IM_BLOCK_ATTRIBUTES)
    (data,) = context.emit("Col2ImGrad", inputs, attributes, domain=WEFT_DOMAIN)
    return data, None, None


COL2_IM = OpSchema(
    op_type="Col2Im",
    inputs=(required("input", NUMBERS), required("image_shape", INT64), required("block_shape", INT64)),
    outputs=(required("output", NUMBERS),),
    infer=_infer_col2_im,
    gradient=_col2_im_gradient,
    attributes=COL2_IM_BLOCK_ATTRIBUTES,
    flops=reduced,
)
"""Col2Im: blocks (batch, channels * places of a block, blocks) added up where they lie in an image; fold of PyTorch."""


COL2_IM_GRAD = OpSchema(
    op_type="Col2ImGrad",
    inputs=(
        required("gradient", FLOATS),
        required("input", FLOATS),
        required("image_shape", INT64),
        required("block_shape", INT64),
    ),
    outputs=(required("input_gradient", FLOATS),),
    infer=infer_like(1),
    attributes=COL2_IM_BLOCK_ATTRIBUTES,
    domain=WEFT_DOMAIN,
    flops=moved,
)
"""Col2ImGrad(gradient, input, image_shape, block_shape): the gradient of Col2Im's input, which is unfold of PyTorch."""
