"""ConvTranspose: each element spread by weights (channels, features / group, kernel ...).

The input is (batch, channels, spatial ...). It is the gradient of Conv's input, as a layer.
"""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.dimensions.dims import agree, agree_all
from weft_graph.formals import FLOATS, optional, required
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.schema import Attribute, GradientContext, InferContext, MemoryOrder, OpSchema
from weft_graph.shapes.broadcasting import check_same_dtype
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.spatial_flops import spread
from weft_graph.shapes.transposed import transposed_windows
from weft_graph.shapes.windows import WINDOW_ATTRIBUTES, Windows
from weft_graph.types import Shape, TensorType


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


def _infer(context: InferContext) -> tuple[TensorType, ...]:
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


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
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


SCHEMA = OpSchema(
    op_type="ConvTranspose",
    inputs=(required("X", FLOATS), required("W", FLOATS), optional("B", FLOATS)),
    outputs=(required("Y", FLOATS),),
    infer=_infer,
    gradient=_gradient,
    attributes={
        **WINDOW_ATTRIBUTES,
        "group": Attribute(int, default=1),
        "output_padding": Attribute(tuple),
        "output_shape": Attribute(tuple),
    },
    order=MemoryOrder.CHANNELS,
    work=spread,
)
