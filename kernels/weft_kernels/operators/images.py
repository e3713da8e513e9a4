"""Resampling of images, boxes and grids."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft_graph.attributes import as_float, as_int, as_ints, as_str
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.shapes.resizing import Along, by_scales, by_sizes, check_length, resized_axes
from weft_kernels.arguments import optional, required
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array, Attributes, Inputs, KernelContext, Outputs, kernel
from weft_kernels.sampling import (
    Interpolation,
    cubic_weight,
    grid_taps,
    interpolated,
    rows_of,
    sampled,
    slopes,
    spread,
    unrowed,
)

# --- The places of an image in coordinates from -1 to 1, with a 1 behind them: what affine matrices are applied to ----


def homogeneous_places(xp: Any, shape: Sequence[int], dtype: Any, *, align_corners: bool) -> Array:
    """(places, dimensions + 1): the coordinates of each place, those of the last dimension first, then 1.

    -1 and 1 are the centres of the outermost elements, or their outer edges.
    """
    rank = len(shape)
    result: Array = xp.ones((*shape, rank + 1), dtype=dtype)
    for axis, size in enumerate(shape):
        steps = xp.arange(size, dtype=dtype)
        if align_corners:
            along = steps * (2 / (size - 1)) - 1 if size > 1 else steps * 0
        else:
            along = (2 * steps + 1) / max(size, 1) - 1
        result[..., rank - 1 - axis] = along.reshape(-1, *(1,) * (rank - 1 - axis))
    return result.reshape(math.prod(shape), rank + 1)


# --- Resize's dimensions as interpolations: where results lie among the elements, and what they are made of there -----


def resized_dimensions(
    shape: tuple[int, ...], lists: Sequence[Array | None], attributes: Attributes
) -> tuple[Along, ...]:
    """What becomes of each dimension that does not stay as it is. `lists` are Resize's roi, scales and sizes.

    Raises ValueError where they do not fit the shape.
    """
    given = attributes.get("axes")
    axes = resized_axes(len(shape), None if given is None else as_ints(given))
    region, scales, sizes = (optional(lists, place) for place in range(3))
    is_crop = attributes["coordinate_transformation_mode"] == "tf_crop_and_resize"
    bounds = region.reshape(-1).tolist() if is_crop and region is not None else None
    if scales is not None and scales.size:
        every = by_scales(shape, axes, scales.reshape(-1).tolist(), bounds)
    elif sizes is not None:
        policy = as_str(attributes["keep_aspect_ratio_policy"])
        every = by_sizes(shape, axes, [int(size) for size in sizes.reshape(-1).tolist()], bounds, policy)
    else:
        raise ValueError("one of scales and sizes must be given")
    # Dimensions that shrink go first: the others have less to do.
    return tuple(sorted((along for along in every if not along.is_same), key=lambda along: along.scale))


def interpolation(along: Along, attributes: Attributes) -> Interpolation:
    """The dimension's results as sums of its elements."""
    places = _places(along, as_str(attributes["coordinate_transformation_mode"]))
    mode = as_str(attributes["mode"])
    if mode == "nearest":
        return _nearest(along, places, as_str(attributes["nearest_mode"]))
    a = as_float(attributes["cubic_coeff_a"])
    stretch = min(max(1.0, 1 / along.scale), along.size) if as_int(attributes["antialias"]) else 1.0
    excludes = bool(as_int(attributes["exclude_outside"]))
    if mode == "linear":
        return _weighted(along, places, lambda t: np.maximum(1 - np.abs(t), 0), 1, stretch, excludes=excludes)
    return _weighted(along, places, lambda t: cubic_weight(np, t, a), 2, stretch, excludes=excludes)


def outside(along: Along, attributes: Attributes) -> Array:
    """Places of results that a crop reads beyond the elements: they have a value of their own."""
    if attributes["coordinate_transformation_mode"] != "tf_crop_and_resize":
        return np.zeros(0, dtype=np.int64)
    places = _places(along, "tf_crop_and_resize")
    return np.flatnonzero(~((places >= 0) & (places <= along.size - 1)))


def _places(along: Along, mode: str) -> Array:
    """Where each result lies, in elements; float64."""
    x = np.arange(along.count, dtype=np.float64)
    size, scale, width = along.size, along.scale, along.scale * along.size
    if mode == "asymmetric":
        return x / scale
    if mode == "align_corners":
        return x * ((size - 1) / (width - 1)) if along.count > 1 else x
    if mode == "tf_crop_and_resize":
        if along.count > 1:
            return along.start * (size - 1) + x * ((along.end - along.start) * (size - 1) / (along.count - 1))
        return x + 0.5 * (along.start + along.end) * (size - 1)
    if mode == "pytorch_half_pixel" and along.count <= 1:
        return x
    centred = (x + 0.5) / scale - 0.5
    if mode == "half_pixel_symmetric":
        return centred + size / 2 * (1 - along.count / width)
    return centred


_ROUNDING: Mapping[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _nearest(along: Along, places: Array, rounding: str) -> Interpolation:
    elements = _whole(_ROUNDING[rounding](places), 0, max(along.size - 1, 0))
    return Interpolation(along.size, along.count, np.arange(along.count), elements, np.ones(along.count))


def _weighted(
    along: Along, places: Array, weight: Callable[[Array], Array], reach: int, stretch: float, *, excludes: bool
) -> Interpolation:
    """Elements within `reach` times `stretch` of each place, by their distance; the edges' are beyond them as well."""
    first = np.floor(places - reach * stretch) + 1
    elements = first[:, None] + np.arange(math.ceil(2 * reach * stretch))
    weights = weight((elements - places[:, None]) / stretch)
    if excludes:
        weights = np.where((elements >= 0) & (elements < along.size), weights, 0)
    if excludes or stretch != 1:
        total = weights.sum(axis=1, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)
    results = np.broadcast_to(np.arange(along.count)[:, None], weights.shape)
    used = weights != 0
    inside = _whole(elements, 0, max(along.size - 1, 0))
    return Interpolation(along.size, along.count, results[used], inside[used], weights[used])


def _whole(numbers: Array, low: int, high: int) -> Array:
    """int64 within the bounds; NaN, which a region may hold, becomes the lower one."""
    clipped = np.clip(np.nan_to_num(numbers, nan=low, posinf=high, neginf=low), low, high)
    whole: Array = clipped.astype(np.int64)
    return whole


@kernel("Resize", host_inputs=(1, 2, 3), waits=True)
def resize(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Every element of the result a sum of a few, one dimension after the other."""
    xp = context.xp
    (data,) = required(inputs, 1)
    dimensions = resized_dimensions(data.shape, inputs[1:], attributes)
    result = data if attributes["mode"] == "nearest" else data.astype(statistics_dtype(xp, data), copy=False)
    for along in dimensions:
        result = interpolated(xp, result, along.axis, interpolation(along, attributes))
    for along in dimensions:
        beyond = outside(along, attributes)
        if beyond.size:
            result = result.copy() if result is data else result
            result[(*(slice(None),) * along.axis, xp.asarray(beyond))] = as_float(attributes["extrapolation_value"])
    return (result.astype(data.dtype, copy=False),)


@kernel("ResizeGrad", domain=WEFT_DOMAIN, host_inputs=(2, 3, 4), waits=True)
def resize_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The transpose of Resize: each gradient goes to the elements that its own was made of, with their weights."""
    xp = context.xp
    gradient, data = required(inputs, 2)
    dimensions = resized_dimensions(data.shape, inputs[2:], attributes)
    result = gradient.astype(statistics_dtype(xp, data), copy=False)
    for along in dimensions:
        beyond = outside(along, attributes)
        if beyond.size:
            result = result.copy() if result is gradient else result
            result[(*(slice(None),) * along.axis, xp.asarray(beyond))] = 0
    for along in reversed(dimensions):
        result = interpolated(xp, result, along.axis, interpolation(along, attributes).transposed)
    return (result.astype(data.dtype, copy=False),)


@kernel("AffineGrid", host_inputs=(1,))
def affine_grid(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Every place of the image times each matrix."""
    xp = context.xp
    theta, size = required(inputs)
    batch, _, *shape = (int(number) for number in size.tolist())
    if batch != theta.shape[0] or min(shape) < 0:
        raise ValueError(f"size {[batch, *shape]} does not fit {theta.shape[0]} matrices")
    dtype, aligned = statistics_dtype(xp, theta), bool(as_int(attributes["align_corners"]))
    places = homogeneous_places(xp, shape, dtype, align_corners=aligned)
    grid = xp.matmul(places, theta.astype(dtype, copy=False).swapaxes(1, 2))
    return (grid.reshape(batch, *shape, len(shape)).astype(theta.dtype, copy=False),)


@kernel("AffineGridGrad", domain=WEFT_DOMAIN, host_inputs=(2,))
def affine_grid_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Each matrix's gradient: the places' gradients times the places."""
    xp = context.xp
    gradient, theta, size = required(inputs)
    shape = [int(number) for number in size.tolist()[2:]]
    dtype, aligned = statistics_dtype(xp, theta), bool(as_int(attributes["align_corners"]))
    places = homogeneous_places(xp, shape, dtype, align_corners=aligned)
    rows = gradient.astype(dtype, copy=False).reshape(theta.shape[0], len(places), len(shape))
    return (xp.matmul(rows.swapaxes(1, 2), places).astype(theta.dtype, copy=False),)


@kernel("GridSample")
def grid_sample(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """For each place of the grid the weighted sum of the elements around it."""
    xp = context.xp
    data, grid = required(inputs)
    rows = rows_of(xp, data, statistics_dtype(xp, data))
    result = sampled(xp, rows, grid_taps(xp, grid, data.shape[2:], attributes))
    shape = (*data.shape[:2], *grid.shape[1:-1])
    return (unrowed(result, shape).astype(data.dtype, copy=False),)


@kernel("GridSampleGrad", domain=WEFT_DOMAIN, waits=True)
def grid_sample_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Each gradient, added to the elements around its place; and what a step of the place would have made of them."""
    xp = context.xp
    gradient, data, grid = required(inputs)
    shape, dtype = data.shape[2:], statistics_dtype(xp, data)
    rows, points = rows_of(xp, data, dtype), rows_of(xp, gradient, dtype)[:-1]
    added = spread(xp, points, grid_taps(xp, grid, shape, attributes), len(rows))
    result = unrowed(added, data.shape).astype(data.dtype, copy=False)
    if not context.asks(1):
        return (result,)
    moved = slopes(xp, rows, points, grid_taps(xp, grid, shape, attributes), len(shape))
    return result, moved[:, ::-1].reshape(grid.shape).astype(grid.dtype, copy=False)


@kernel("CenterCropPad", host_inputs=(1,))
def center_crop_pad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The middle of the data, in the middle of zeros."""
    data, target = required(inputs)
    given = attributes.get("axes")
    axes = resized_axes(data.ndim, None if given is None else as_ints(given))
    lengths = [int(length) for length in target.reshape(-1).tolist()]
    check_length("shape", lengths, axes)
    if min(lengths, default=0) < 0:
        raise ValueError(f"shape {lengths} has a dimension below 0")
    shape = list(data.shape)
    read, written = [slice(None)] * data.ndim, [slice(None)] * data.ndim
    for axis, length in zip(axes, lengths, strict=True):
        read[axis], written[axis] = _middle(data.shape[axis], length), _middle(length, data.shape[axis])
        shape[axis] = length
    if all(new <= old for new, old in zip(shape, data.shape, strict=True)):
        return (data[tuple(read)],)
    result = context.xp.zeros(tuple(shape), dtype=data.dtype)
    result[tuple(written)] = data[tuple(read)]
    return (result,)


def _middle(whole: int, part: int) -> slice:
    """The middle `part` of `whole` elements, the odd one after it; all where there are no more."""
    begin = max(whole - part, 0) // 2
    return slice(begin, begin + min(whole, part))


@kernel("NonMaxSuppression", host_inputs=(0, 1, 2, 3, 4), waits=True)
def non_max_suppression(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Box by box in the order of scores, on the host: each turn takes away all that overlap the one that was chosen."""
    boxes, scores = required(inputs, 2)
    most = int(_number(inputs, 2, 0))
    overlap, lowest = _number(inputs, 3, 0), _number(inputs, 4, -math.inf)
    corners = _corners(boxes, is_centred=bool(as_int(attributes["center_point_box"])))
    chosen = [np.zeros((0, 3), dtype=np.int64)]
    for image, class_ in np.ndindex(scores.shape[:2]):
        found = _suppressed(corners[image], scores[image, class_], most, overlap, lowest)
        chosen.append(np.column_stack([np.full(len(found), image), np.full(len(found), class_), found]))
    return (context.xp.asarray(np.concatenate(chosen).astype(np.int64)),)


def _number(inputs: Sequence[Array | None], index: int, default: float) -> float:
    given = optional(inputs, index)
    return default if given is None else given.reshape(-1)[0].item()


def _corners(boxes: Array, *, is_centred: bool) -> Array:
    """(images, boxes, 4): the lower corner, then the upper one. Which dimension is which makes no difference."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if is_centred:
        first, second = first - second / 2, first + second / 2
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=-1)


def _suppressed(corners: Array, scores: Array, most: int, overlap: float, lowest: float) -> Array:
    """Indices of the boxes that stay, by falling score; of equal scores the first box comes first."""
    left = np.argsort(-scores, kind="stable")
    left = left[scores[left] >= lowest]
    areas = np.prod(corners[:, 2:] - corners[:, :2], axis=1)
    chosen: list[int] = []
    while left.size and len(chosen) < most:
        best, left = left[0], left[1:]
        chosen.append(int(best))
        low = np.maximum(corners[best, :2], corners[left, :2])
        high = np.minimum(corners[best, 2:], corners[left, 2:])
        shared = np.prod(np.maximum(high - low, 0), axis=1)
        union = areas[best] + areas[left] - shared
        left = left[~(shared > overlap * union)]
    return np.array(chosen, dtype=np.int64)
