"""MaxRoiPool's bins: whole elements, from each box's numbers on the host; and the largest of each bin."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from weft_graph.attributes import as_float, as_ints
from weft_graph.ir import AttributeValue
from weft_kernels.kernel import Array


def largest_of_bins(xp: Any, data: Array, rois: Array, attributes: Mapping[str, AttributeValue]) -> tuple[Array, Array]:
    """(largest, its element in the flattened data or -1 of an empty bin), both (boxes, channels, bins, bins)."""
    images, begin, end = _bins(rois, data.shape, attributes)
    channels, (high, wide) = data.shape[1], data.shape[2:]
    shape = (len(rois), channels, begin[0].shape[1], begin[1].shape[1])
    best = xp.zeros(shape, dtype=data.dtype)
    place = xp.full(shape, -1, dtype=xp.int64)
    flat = data.reshape(-1)
    planes = (images[:, None] * channels + np.arange(channels))[:, :, None, None]
    reach = [int((end[axis] - begin[axis]).max(initial=0)) for axis in (0, 1)]
    # One turn for each place in the largest bin: all boxes, channels and bins at once.
    for down, across in itertools.product(*map(range, reach)):
        y, x = begin[0] + down, begin[1] + across
        is_inside = ((y < end[0])[:, :, None] & (x < end[1])[:, None, :])[:, None]
        element = (planes * high + y[:, None, :, None]) * wide + x[:, None, None, :]
        index = xp.asarray(np.where(is_inside, element, 0))
        here, is_real = xp.take(flat, index), xp.asarray(is_inside)
        is_better = is_real & ((place < 0) | (here > best))
        best = xp.where(is_better, here, best)
        place = xp.where(is_better, index, place)
    return best, place


def _bins(
    rois: Array, shape: tuple[int, ...], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, tuple[Array, Array], tuple[Array, Array]]:
    """(image of each box, the bins' first rows and columns, those after their last), each (boxes, bins), int64."""
    numbers = rois.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise ValueError("a box has a number that is not finite")
    images = numbers[:, 0]
    if images.size and (images.min() < 0 or images.max() >= shape[0] or (images % 1).any()):
        raise ValueError(f"a box's image is none of the {shape[0]} there are")
    scale = as_float(attributes["spatial_scale"])
    ends = np.floor(numbers[:, 1:] * scale + 0.5)
    begins, stops = [], []
    for axis, bins in enumerate(as_ints(attributes["pooled_shape"])):
        first, last = ends[:, 1 - axis], ends[:, 3 - axis]
        each = np.maximum(last - first + 1, 1) / bins
        at = np.arange(bins)
        size = shape[2 + axis]
        begins.append(np.clip(np.floor(at * each[:, None]) + first[:, None], 0, size).astype(np.int64))
        stops.append(np.clip(np.ceil((at + 1) * each[:, None]) + first[:, None], 0, size).astype(np.int64))
    return images.astype(np.int64), (begins[0], begins[1]), (stops[0], stops[1])
