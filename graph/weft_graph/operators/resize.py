"""Resize: the input at another number of elements along dimensions: the nearest ones, or lines or cubics through them.

`sizes` or `scales` say how many; where they are not known before a step, neither is the shape.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft_graph.attributes import as_ints, as_str
from weft_graph.dimensions.dims import Dim, is_unknown, product
from weft_graph.formals import BOOLEANS, FLOATS, INT64, NUMBERS, optional, required, setting
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.composing import given_attributes
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.resizing import POLICIES, Region, by_scales, by_sizes, check_length, resized_axes
from weft_graph.shapes.spatial_flops import resampled
from weft_graph.types import DType, TensorType

CHOICES = {
    "mode": ("nearest", "linear", "cubic"),
    "coordinate_transformation_mode": (
        "half_pixel",
        "half_pixel_symmetric",
        "pytorch_half_pixel",
        "align_corners",
        "asymmetric",
        "tf_crop_and_resize",
    ),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    "keep_aspect_ratio_policy": POLICIES,
}

RESIZE_ATTRIBUTES = {
    "antialias": Attribute(int, default=0),
    "axes": Attribute(tuple),
    "coordinate_transformation_mode": Attribute(str, default="half_pixel"),
    "cubic_coeff_a": Attribute(float, default=-0.75),
    "exclude_outside": Attribute(int, default=0),
    "extrapolation_value": Attribute(float, default=0.0),
    "keep_aspect_ratio_policy": Attribute(str, default="stretch"),
    "mode": Attribute(str, default="nearest"),
    "nearest_mode": Attribute(str, default="round_prefer_floor"),
}


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    for name, choices in CHOICES.items():
        if context.attribute(name) not in choices:
            raise context.shape_error(f"{name} {context.attribute(name)!r} is none of {', '.join(choices)}")
    if data.dtype is DType.BOOL and context.attribute("mode") != "nearest":
        raise context.dtype_error(f"mode {context.attribute('mode')!r} takes numbers, got {data}")
    given = context.attribute("axes")
    try:
        axes = resized_axes(data.rank, None if given is None else as_ints(given))
        return (TensorType(data.dtype, _resized(context, data, axes)),)
    except ValueError as error:
        raise context.shape_error(f"{error}; the input is {data}") from None


def _resized(context: InferContext, data: TensorType, axes: Sequence[int]) -> tuple[Dim, ...]:
    scaled, sized = _is_given(context, 2), _is_given(context, 3)
    if scaled == sized:
        raise ValueError("one of scales and sizes must be given" + (", not both" if scaled else ""))
    is_crop = context.attribute("coordinate_transformation_mode") == "tf_crop_and_resize"
    if is_crop and not _is_given(context, 1):
        raise ValueError("tf_crop_and_resize needs roi")
    counts = _by_sizes(context, data, axes) if sized else _by_scales(context, data, axes, is_crop=is_crop)
    shape = list(data.shape)
    for axis, count in zip(axes, counts, strict=True):
        shape[axis] = count
    return tuple(shape)


def _is_given(context: InferContext, index: int) -> bool:
    """An empty list counts as none: so did exporters leave an input out before it could be."""
    type_ = context.optional_input(index)
    return type_ is not None and product(type_.shape) != 0


def _by_scales(context: InferContext, data: TensorType, axes: Sequence[int], *, is_crop: bool) -> list[Dim]:
    known, region = context.constant(2), context.constant(1) if is_crop else None
    if known is None or (is_crop and region is None):
        if context.input(2).shape != (len(axes),):
            raise ValueError(f"scales {context.input(2)} must have a number for each of {len(axes)} axes")
        return [context.unknown() for _ in axes]
    scales = [float(scale) for scale in known.reshape(-1)]
    check_length("scales", scales, axes)
    numbers = [dim if isinstance(dim, int) else 1 for dim in data.shape]
    bounds: Region | None = None if region is None else [float(number) for number in region.reshape(-1)]
    counts: list[Dim] = [along.count for along in by_scales(numbers, axes, scales, bounds)]
    for place, axis in enumerate(axes):
        dim = data.shape[axis]
        if not isinstance(dim, int):
            whole = scales[place].is_integer() and not is_crop
            counts[place] = product((dim, int(scales[place]))) if whole else context.unknown()
    return counts


def _by_sizes(context: InferContext, data: TensorType, axes: Sequence[int]) -> list[Dim]:
    sizes = context.dims(3)
    if sizes is None:
        raise ValueError(f"sizes {context.input(3)} must have a number for each of {len(axes)} axes")
    check_length("sizes", sizes, axes)
    policy = as_str(context.attribute("keep_aspect_ratio_policy"))
    shape = [dim for dim in data.shape if isinstance(dim, int)]
    numbers = [size for size in sizes if isinstance(size, int)]
    if len(shape) == data.rank and len(numbers) == len(sizes):
        return [along.count for along in by_sizes(shape, axes, numbers, None, policy)]
    if min(numbers, default=0) < 0:
        raise ValueError(f"sizes {list(sizes)} must not be below 0")
    if policy == "stretch":
        return list(sizes)
    return [context.unknown() if not is_unknown(size) else size for size in sizes]


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), *context.node.inputs)
    attributes = given_attributes(context, RESIZE_ATTRIBUTES)
    (data,) = context.emit("ResizeGrad", inputs, attributes, domain=WEFT_DOMAIN)
    return (data, *(None,) * (len(context.node.inputs) - 1))


SCHEMA = OpSchema(
    op_type="Resize",
    inputs=(
        required("X", NUMBERS | BOOLEANS),
        setting(optional("roi", FLOATS)),
        setting(optional("scales", frozenset({DType.FLOAT32}))),
        optional("sizes", INT64),
    ),
    outputs=(required("Y", NUMBERS | BOOLEANS),),
    infer=_infer,
    gradient=_gradient,
    attributes=RESIZE_ATTRIBUTES,
    flops=resampled,
)
