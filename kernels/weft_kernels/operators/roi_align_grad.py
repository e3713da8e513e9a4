"""Each bin's gradient, shared among the elements around its points; or given to the first of the largest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.element_types import statistics_dtype
from weft_kernels.indexing.rows import summed_rows
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.sampling.boxes import BoxPoints, box_points, largest, weighed
from weft_kernels.sampling.taps import rows_of, spread, unrowed

HOST_INPUTS = (2, 3)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, data, rois, images = required(inputs)
    dtype, channels = statistics_dtype(xp, data), data.shape[1]
    rows = rows_of(xp, data, dtype)
    by_bin = gradient.astype(dtype, copy=False).transpose(0, 2, 3, 1).reshape(len(rois), -1, channels)
    result = xp.zeros((len(rows) - 1, channels), dtype=dtype)
    for group in box_points(rois, images, data.shape, attributes):
        boxes, bins, points = group.shape
        if points == 0:
            continue
        given = by_bin[xp.asarray(group.boxes)]
        if attributes["mode"] == "max":
            result += _of_largest(xp, rows, given, group)
            continue
        each = xp.broadcast_to((given / points)[:, :, None], (boxes, bins, points, channels))
        result += spread(xp, each.reshape(-1, channels), group.taps(xp), len(rows))
    return (unrowed(result, data.shape).astype(data.dtype, copy=False),)


def _of_largest(xp: Any, rows: Array, given: Array, group: BoxPoints) -> Array:
    """The gradient of the rows, of each bin at the first tap and point that has its largest."""
    best, channels = largest(xp, rows, group), rows.shape[1]
    left = xp.ones(best.shape, dtype=bool)
    result: Array = xp.zeros(((len(rows) - 1) * channels, 1), dtype=given.dtype)
    for tap, part in weighed(xp, rows, group):
        hit = part == best[:, :, None]
        first = hit.argmax(axis=2)
        chosen = left & hit.any(axis=2)
        left = left & ~chosen
        element = xp.take_along_axis(tap.elements.reshape(group.shape), first, axis=2)
        weight = xp.take_along_axis(tap.weights.reshape(group.shape), first, axis=2).astype(given.dtype)
        place = xp.where(chosen & (element >= 0), element * channels + xp.arange(channels), -1)
        result += summed_rows(xp, (given * weight).reshape(-1, 1), place.reshape(-1), len(result))
    return result.reshape(len(rows) - 1, channels)
