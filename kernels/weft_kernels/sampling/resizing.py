"""Resize's dimensions as interpolations: where results lie among the elements, and what they are made of there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from weft_graph.attributes import as_float, as_int, as_ints, as_str
from weft_graph.ir import AttributeValue
from weft_graph.shapes.resizing import Along, by_scales, by_sizes, resized_axes
from weft_kernels.arguments import optional
from weft_kernels.kernel import Array
from weft_kernels.sampling.cubic import cubic_weight
from weft_kernels.sampling.interpolation import Interpolation

Attributes = Mapping[str, AttributeValue]


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
