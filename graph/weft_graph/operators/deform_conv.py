"""DeformConv: a convolution each place of whose windows is moved by an offset and weighed by a mask.

Dai et al. 2017, Zhu et al. 2019. Between elements it reads linearly, and 0 outside.
"""

from __future__ import annotations

import math

from weft_graph.attributes import as_int
from weft_graph.dimensions.dims import agree
from weft_graph.formals import FLOATS, optional, required
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.broadcasting import check_same_dtype
from weft_graph.shapes.composing import apply, given_attributes
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.spatial_flops import convolved
from weft_graph.shapes.windows import WINDOW_ATTRIBUTES, Windows, infer_windows
from weft_graph.types import Shape, TensorType

DEFORM_ATTRIBUTES = {
    **{name: attribute for name, attribute in WINDOW_ATTRIBUTES.items() if name != "auto_pad"},
    "group": Attribute(int, default=1),
    "offset_group": Attribute(int, default=1),
}


def _infer(context: InferContext) -> tuple[TensorType, ...]:
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


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, given = incoming(context), context.node.inputs
    mask = given[4] if len(given) > 4 else ""
    inputs = (gradient, *given[:3], *((mask,) if mask else ()))
    found = context.emit(
        "DeformConvGrad",
        inputs,
        given_attributes(context, DEFORM_ATTRIBUTES),
        domain=WEFT_DOMAIN,
        outputs=4 if mask else 3,
    )
    gradients: list[str | None] = [*found[:3], None, found[3] if mask else None]
    if context.needs(3):
        axes: dict[str, AttributeValue] = {"axes": (0, *range(2, context.type_of(gradient).rank)), "keepdims": 0}
        gradients[3] = apply(context, "ReduceSum", gradient, **axes)
    return tuple(gradients[: len(given)])


SCHEMA = OpSchema(
    op_type="DeformConv",
    inputs=(
        required("X", FLOATS),
        required("W", FLOATS),
        required("offset", FLOATS),
        optional("B", FLOATS),
        optional("mask", FLOATS),
    ),
    outputs=(required("Y", FLOATS),),
    infer=_infer,
    gradient=_gradient,
    attributes=DEFORM_ATTRIBUTES,
    flops=convolved,
)
