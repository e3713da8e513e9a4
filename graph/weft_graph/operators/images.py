"""Resampling of images, boxes and grids."""

from __future__ import annotations

from collections.abc import Sequence

from weft_graph.attributes import as_ints, as_str
from weft_graph.dimensions import Dim, agree, agree_all, is_unknown, product, settled
from weft_graph.formals import ANY, BOOLEANS, FLOATS, INDICES, INT64, NUMBERS, optional, required, setting
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema, Setting
from weft_graph.shapes.broadcasting import infer_like
from weft_graph.shapes.flops import moved, reduced, resampled, sampled, sampled_gradient
from weft_graph.shapes.gradients import apply, given_attributes, incoming
from weft_graph.shapes.resizing import POLICIES, Region, by_scales, by_sizes, check_length, resized_axes
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


RESIZE_RESIZE_ATTRIBUTES = {
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


def _infer_resize(context: InferContext) -> tuple[TensorType, ...]:
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


def _resize_gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), *context.node.inputs)
    attributes = given_attributes(context, RESIZE_RESIZE_ATTRIBUTES)
    (data,) = context.emit("ResizeGrad", inputs, attributes, domain=WEFT_DOMAIN)
    return (data, *(None,) * (len(context.node.inputs) - 1))


RESIZE = OpSchema(
    op_type="Resize",
    inputs=(
        required("X", NUMBERS | BOOLEANS),
        setting(optional("roi", FLOATS)),
        setting(optional("scales", frozenset({DType.FLOAT32}))),
        optional("sizes", INT64),
    ),
    outputs=(required("Y", NUMBERS | BOOLEANS),),
    infer=_infer_resize,
    gradient=_resize_gradient,
    attributes=RESIZE_RESIZE_ATTRIBUTES,
    flops=resampled,
)
"""Resize: the input at another number of elements along dimensions: the nearest ones, or lines or cubics through them.

`sizes` or `scales` say how many; where they are not known before a step, neither is the shape.
"""


RESIZE_GRAD = OpSchema(
    op_type="ResizeGrad",
    inputs=(
        required("gradient", FLOATS),
        required("X", FLOATS),
        optional("roi", FLOATS),
        optional("scales", frozenset({DType.FLOAT32})),
        optional("sizes", INT64),
    ),
    outputs=(required("X_gradient", FLOATS),),
    infer=infer_like(1),
    attributes=RESIZE_RESIZE_ATTRIBUTES,
    domain=WEFT_DOMAIN,
    flops=resampled,
)
"""ResizeGrad(gradient, X, roi, scales, sizes): the gradient of X; Resize's attributes."""


AFFINE_GRID_GRID_ATTRIBUTES = {"align_corners": Attribute(int, default=0)}


def _infer_affine_grid(context: InferContext) -> tuple[TensorType, ...]:
    theta, size = context.input(0), context.dims(1)
    rank = 0 if size is None else len(size) - 2
    if size is None or rank not in {2, 3} or theta.rank != 3 or not agree_all(theta.shape[1:], (rank, rank + 1)):
        raise context.shape_error(
            f"theta must be (batch, 2, 3) or (batch, 3, 4) with a size of 4 or 5 numbers, got {theta}, {size}"
        )
    if not agree(theta.shape[0], size[0]):
        raise context.shape_error(f"theta {theta} has {theta.shape[0]} matrices for a batch of {size[0]}")
    if any(isinstance(dim, int) and dim < 0 for dim in size):
        raise context.shape_error(f"size {list(size)} has a dimension below 0")
    return (TensorType(theta.dtype, (settled(theta.shape[0], size[0]), *size[2:], rank)),)


def _affine_grid_gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), context.input(0), context.input(1))
    attributes = given_attributes(context, AFFINE_GRID_GRID_ATTRIBUTES)
    (theta,) = context.emit("AffineGridGrad", inputs, attributes, domain=WEFT_DOMAIN)
    return theta, None


AFFINE_GRID = OpSchema(
    op_type="AffineGrid",
    inputs=(required("theta", FLOATS), required("size", INT64)),
    outputs=(required("grid", FLOATS),),
    infer=_infer_affine_grid,
    gradient=_affine_grid_gradient,
    attributes=AFFINE_GRID_GRID_ATTRIBUTES,
    flops=moved,
)
"""AffineGrid: for each place of an image where an affine matrix sends it, in coordinates from -1 to 1.

`theta` (batch, 2, 3) or (batch, 3, 4) gives (batch, h, w, 2) or (batch, d, h, w, 3). Jaderberg et al. 2015.
"""


AFFINE_GRID_GRAD = OpSchema(
    op_type="AffineGridGrad",
    inputs=(required("gradient", FLOATS), required("theta", FLOATS), required("size", INT64)),
    outputs=(required("theta_gradient", FLOATS),),
    infer=infer_like(1),
    attributes=AFFINE_GRID_GRID_ATTRIBUTES,
    domain=WEFT_DOMAIN,
    flops=reduced,
)
"""AffineGridGrad(gradient, theta, size): the gradient of theta; AffineGrid's attributes."""


GRID_SAMPLE_SAMPLE_ATTRIBUTES = {
    "align_corners": Attribute(int, default=0),
    "mode": Attribute(str, default="linear"),
    "padding_mode": Attribute(str, default="zeros"),
}


_CHOICES = {
    "mode": ("linear", "nearest", "cubic", "bilinear", "bicubic"),
    "padding_mode": ("zeros", "border", "reflection"),
}


def _infer_grid_sample(context: InferContext) -> tuple[TensorType, ...]:
    data, grid = context.input(0), context.input(1)
    for name, choices in _CHOICES.items():
        if context.attribute(name) not in choices:
            raise context.shape_error(f"{name} {context.attribute(name)!r} is none of {', '.join(choices)}")
    if data.rank < 3 or grid.rank != data.rank or not agree(grid.shape[-1], data.rank - 2):
        raise context.shape_error(
            f"X must be (batch, channels, spatial ...) and grid (batch, places ..., dimensions), got {data} and {grid}"
        )
    if not agree(data.shape[0], grid.shape[0]):
        raise context.shape_error(f"X {data} and grid {grid} have different batches")
    batch = settled(data.shape[0], grid.shape[0])
    return (TensorType(data.dtype, (batch, data.shape[1], *grid.shape[1:-1])),)


def _grid_sample_gradient(context: GradientContext) -> tuple[str | None, ...]:
    attributes = given_attributes(context, GRID_SAMPLE_SAMPLE_ATTRIBUTES)
    inputs = (incoming(context), context.input(0), context.input(1))
    wanted = 2 if context.needs(1) else 1
    gradients = context.emit("GridSampleGrad", inputs, attributes, domain=WEFT_DOMAIN, outputs=wanted)
    return gradients[0], gradients[1] if wanted == 2 else None


GRID_SAMPLE = OpSchema(
    op_type="GridSample",
    inputs=(required("X", NUMBERS | BOOLEANS), setting(required("grid", FLOATS), Setting.GIVEN)),
    outputs=(required("Y", NUMBERS | BOOLEANS),),
    infer=_infer_grid_sample,
    gradient=_grid_sample_gradient,
    attributes=GRID_SAMPLE_SAMPLE_ATTRIBUTES,
    flops=sampled,
)
"""GridSample: the input (batch, channels, spatial ...) at the places of a grid, in coordinates from -1 to 1.

The grid is (batch, places ..., dimensions), the last dimension's coordinate first. Jaderberg et al. 2015.
"""


def _infer_grid_sample_grad(context: InferContext) -> tuple[TensorType, ...]:
    return context.input(1), context.input(2)


GRID_SAMPLE_GRAD = OpSchema(
    op_type="GridSampleGrad",
    inputs=(required("gradient", FLOATS), required("X", FLOATS), required("grid", FLOATS)),
    outputs=(required("X_gradient", FLOATS), optional("grid_gradient", FLOATS)),
    infer=_infer_grid_sample_grad,
    attributes=GRID_SAMPLE_SAMPLE_ATTRIBUTES,
    domain=WEFT_DOMAIN,
    work=sampled_gradient,
)
"""GridSampleGrad(gradient, X, grid): the gradients of X and of the grid; GridSample's attributes."""


def _infer_center_crop_pad(context: InferContext) -> tuple[TensorType, ...]:
    data, target, given = context.input(0), context.dims(1), context.attribute("axes")
    if target is None:
        raise context.shape_error(f"shape must be a list of as many numbers as axes, got {context.input(1)}")
    try:
        axes = resized_axes(data.rank, None if given is None else as_ints(given))
        check_length("shape", target, axes)
    except ValueError as error:
        raise context.shape_error(f"{error}; the input is {data}") from None
    shape = list(data.shape)
    for axis, dim in zip(axes, target, strict=True):
        if isinstance(dim, int) and dim < 0:
            raise context.shape_error(f"shape {list(target)} has a dimension below 0")
        shape[axis] = dim
    return (TensorType(data.dtype, tuple(shape)),)


def _center_crop_pad_gradient(context: GradientContext) -> tuple[str | None, ...]:
    # What was cut off is put back as zeros around the middle, and what was put around it is cut off.
    shape = apply(context, "Shape", context.input(0))
    return apply(context, "CenterCropPad", incoming(context), shape), None


CENTER_CROP_PAD = OpSchema(
    op_type="CenterCropPad",
    inputs=(required("input_data", ANY), required("shape", INDICES)),
    outputs=(required("output_data", ANY),),
    infer=_infer_center_crop_pad,
    gradient=_center_crop_pad_gradient,
    attributes={"axes": Attribute(tuple)},
    flops=moved,
)
"""CenterCropPad: the middle of dimensions that are too long, and zeros around those that are too short."""


_FLOAT = frozenset({DType.FLOAT32})


def _infer_non_max_suppression(context: InferContext) -> tuple[TensorType, ...]:
    boxes, scores = context.input(0), context.input(1)
    if boxes.rank != 3 or scores.rank != 3 or not agree(boxes.shape[2], 4):
        raise context.shape_error(f"boxes must be (batch, n, 4) and scores (batch, classes, n), got {boxes}, {scores}")
    if not agree(boxes.shape[0], scores.shape[0]) or not agree(boxes.shape[1], scores.shape[2]):
        raise context.shape_error(f"boxes {boxes} and scores {scores} differ in batch or number")
    for index in (2, 3, 4):
        type_ = context.optional_input(index)
        if type_ is not None and product(type_.shape) != 1:
            raise context.shape_error(f"input {index} must be one number, got {type_}")
    return (TensorType(DType.INT64, (context.unknown(), 3)),)


NON_MAX_SUPPRESSION = OpSchema(
    op_type="NonMaxSuppression",
    inputs=(
        required("boxes", _FLOAT),
        required("scores", _FLOAT),
        optional("max_output_boxes_per_class", INT64),
        optional("iou_threshold", _FLOAT),
        optional("score_threshold", _FLOAT),
    ),
    outputs=(required("selected_indices", INT64),),
    infer=_infer_non_max_suppression,
    attributes={"center_point_box": Attribute(int, default=0)},
)
"""NonMaxSuppression: (n, 3) indices of image, class and box, of boxes that overlap none with a higher score too much.

How many there are only the values of a step decide.
"""
