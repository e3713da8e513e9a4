"""A convolution's gradients of columns and weights; from the columns those of the elements, the places and the mask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.sampling.deformed_windows import Deformed, deformed_blocks
from weft_kernels.sampling.taps import sampled, slopes, spread, unrowed


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, data, weights, offset = required(inputs, 4)
    mask, group = optional(inputs, 4), as_int(attributes["group"])
    dtype, features = statistics_dtype(xp, data), weights.shape[0]
    kernels = weights.astype(dtype, copy=False).reshape(group, features // group, -1)
    results = [xp.zeros_like(array) for array in (data, offset, *(() if mask is None else (mask,)))]
    by_weight = xp.zeros(kernels.shape, dtype=dtype)
    for part, block in deformed_blocks(data, weights, offset, mask, attributes):
        rows, given = block.rows(xp), gradient[part].astype(dtype, copy=False)
        points = sampled(xp, rows, block.taps(xp))
        output = given.swapaxes(0, 1).reshape(group, features // group, -1)
        columns = block.columns(block.weighed(points), group)
        by_weight += xp.matmul(output, columns.swapaxes(1, 2))
        by_point = block.points(xp.matmul(kernels.swapaxes(1, 2), output))
        results[0][part], results[1][part] = _of_data(xp, block, rows, block.weighed(by_point))
        if mask is not None:
            results[2][part] = (by_point * points).sum(axis=1).reshape(results[2][part].shape)
    by_data, by_offset, *by_mask = results
    return (by_data, by_weight.reshape(weights.shape).astype(weights.dtype, copy=False), by_offset, *by_mask)


def _of_data(xp: Any, block: Deformed, rows: Array, by_point: Array) -> tuple[Array, Array]:
    """(gradient of the images, gradient of their offsets) from that of the points' rows."""
    images, groups, places, count = block.shape
    rank = len(block.windows.size)
    spatial = (images * groups, block.channels // groups, *block.windows.size)
    data = unrowed(spread(xp, by_point, block.taps(xp), len(rows)), spatial)
    moved = slopes(xp, rows, by_point, block.taps(xp), rank).reshape(images, groups, places, count, rank)
    offset = moved.transpose(0, 1, 2, 4, 3).reshape(block.offset.shape)
    return data.reshape(block.data.shape), offset
