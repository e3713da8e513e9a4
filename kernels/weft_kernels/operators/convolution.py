"""Convolutions, and what gathers windows for them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from weft_graph.attributes import as_int
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.shapes.arranging import blocks_of
from weft_graph.shapes.windows import Windows, transposed_windows, windows_of
from weft_kernels.arguments import optional, required
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array, Attributes, Inputs, KernelContext, Outputs, kernel
from weft_kernels.sampling import Tap, combined, linear_taps, rows_of, sampled, slopes, spread, unrowed
from weft_kernels.windows import columns, convolved, scattered, weights_gradient
from weft_kernels.windows import spread as spread_in_convolution

# --- What a deformable convolution's windows hold: its moved places, in blocks of images that bound the memory --------


BLOCK_ELEMENTS: Final = 1 << 22
"""Elements that the windows of one block of images hold; one image may have more."""


@dataclass(frozen=True, slots=True)
class Deformed:
    """A block of images. Points are (images, groups of offsets, places of the kernel, windows), rows have the channels
    of a group of offsets."""

    windows: Windows
    shape: tuple[int, int, int, int]
    data: Array
    offset: Array
    mask: Array | None

    @property
    def channels(self) -> int:
        return int(self.data.shape[1])

    def rows(self, xp: Any) -> Array:
        """The images' elements as rows, see `weft_kernels.sampling`."""
        images, groups, _, _ = self.shape
        by_group = self.data.reshape(images * groups, self.channels // groups, *self.windows.size)
        return rows_of(xp, by_group, statistics_dtype(xp, self.data))

    def taps(self, xp: Any) -> Iterator[Tap]:
        """The elements around each point."""
        images, groups, places, count = self.shape
        rank, dtype = len(self.windows.size), statistics_dtype(xp, self.data)
        offset = self.offset.reshape(images, groups, places, rank, count).astype(dtype, copy=False)
        along = []
        for axis, size in enumerate(self.windows.size):
            start = _starts(xp, self.windows, axis, dtype).reshape(places, count)
            along.append(linear_taps(xp, (offset[:, :, :, axis] + start).reshape(-1), size))
        owner = xp.repeat(xp.arange(images * groups), places * count)
        return combined(owner, along, self.windows.size)

    def weighed(self, points: Array) -> Array:
        """The points' rows (points, channels of a group) times the mask."""
        if self.mask is None:
            return points
        weighed: Array = points * self.mask.astype(points.dtype, copy=False).reshape(-1, 1)
        return weighed

    def columns(self, points: Array, group: int) -> Array:
        """(groups of weights, channels of a group * places, images * windows), from (points, channels of a group)."""
        images, groups, places, count = self.shape
        wide = points.reshape(images, groups, places, count, self.channels // groups).transpose(1, 4, 2, 0, 3)
        return wide.reshape(group, self.channels // group * places, images * count)

    def points(self, columns: Array) -> Array:
        """The reverse of `columns`."""
        images, groups, places, count = self.shape
        each = self.channels // groups
        wide = columns.reshape(groups, each, places, images, count).transpose(3, 0, 2, 4, 1)
        return wide.reshape(images * groups * places * count, each)


def deformed_blocks(
    data: Array, weights: Array, offset: Array, mask: Array | None, attributes: Mapping[str, AttributeValue]
) -> Iterator[tuple[slice, Deformed]]:
    """The images in blocks, each with the part of the batch that it is."""
    windows = windows_of(data.shape[2:], attributes.get, weights.shape[2:])
    places, count = math.prod(windows.kernel), math.prod(windows.count)
    step = max(1, BLOCK_ELEMENTS // max(1, data.shape[1] * places * count))
    for first in range(0, data.shape[0], step):
        part = slice(first, min(first + step, data.shape[0]))
        shape = (part.stop - first, as_int(attributes["offset_group"]), places, count)
        yield part, Deformed(windows, shape, data[part], offset[part], None if mask is None else mask[part])


def _starts(xp: Any, windows: Windows, axis: int, dtype: Any) -> Array:
    """Where each place of each window lies along an axis without an offset: (kernel ..., windows ...)."""
    rank = len(windows.size)
    inner = windows.dilations[axis] * xp.arange(windows.kernel[axis]) - windows.begin[axis]
    outer = windows.strides[axis] * xp.arange(windows.count[axis])
    inner = inner.reshape(-1, *(1,) * (2 * rank - 1 - axis))
    outer = outer.reshape(-1, *(1,) * (rank - 1 - axis))
    whole = xp.zeros((*windows.kernel, *windows.count), dtype=dtype)
    return whole + inner + outer  # type: ignore[no-any-return]  # xp is Any


@kernel("Conv", in_float32=())
def conv(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Convolution as one matrix product for each group."""
    data, weights = required(inputs, 2)
    # The features lead in memory, which is also how the gradients want to read it; only the view is ONNX's order.
    result = convolved(context.xp, data, weights, attributes, context.out(0, data.dtype))
    bias = optional(inputs, 2)
    if bias is not None:
        result += bias.reshape(-1, *(1,) * (result.ndim - 2))
    return (result,)


@kernel("ConvInputGrad", domain=WEFT_DOMAIN, in_float32=())
def conv_input_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradient of a convolution's input: the transposed matrix product, scattered back."""
    gradient, data, weights = required(inputs)
    windows = windows_of(data.shape[2:], attributes.get, weights.shape[2:])
    group, out = as_int(attributes["group"]), context.out(0, gradient.dtype)
    return (spread_in_convolution(context.xp, gradient, weights, windows, group=group, out=out),)


@kernel("ConvWeightGrad", domain=WEFT_DOMAIN, in_float32=())
def conv_weight_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradient of a convolution's weights: one matrix product for each group."""
    gradient, data, weights = required(inputs)
    windows = windows_of(data.shape[2:], attributes.get, weights.shape[2:])
    group, out = as_int(attributes["group"]), context.out(0)
    return (weights_gradient(context.xp, gradient, data, weights.shape, windows, group=group, out=out),)


@kernel("ConvTranspose", in_float32=())
def conv_transpose(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """A matrix product that makes each element's spread, and the sum of all spreads where they fall."""
    data, weights = required(inputs, 2)
    windows = transposed_windows(data.shape[2:], attributes.get, weights.shape[2:])
    group, out = as_int(attributes["group"]), context.out(0, data.dtype)
    result = spread_in_convolution(context.xp, data, weights, windows, group=group, out=out)
    bias = optional(inputs, 2)
    if bias is not None:
        result += bias.reshape(-1, *(1,) * len(windows.size))
    return (result,)


@kernel("DeformConv")
def deform_conv(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The moved places of all windows as columns, and one matrix product for each group."""
    xp = context.xp
    data, weights, offset = required(inputs, 3)
    bias, mask, group = optional(inputs, 3), optional(inputs, 4), as_int(attributes["group"])
    windows = windows_of(data.shape[2:], attributes.get, weights.shape[2:])
    features = weights.shape[0]
    kernels = weights.astype(statistics_dtype(xp, data), copy=False).reshape(group, features // group, -1)
    result = xp.empty((data.shape[0], features, *windows.count), dtype=data.dtype)
    for part, block in deformed_blocks(data, weights, offset, mask, attributes):
        columns = block.columns(block.weighed(sampled(xp, block.rows(xp), block.taps(xp))), group)
        made = xp.matmul(kernels, columns).reshape(features, part.stop - part.start, *windows.count)
        result[part] = made.swapaxes(0, 1)
    if bias is not None:
        result += bias.reshape(-1, *(1,) * len(windows.size))
    return (result,)


@kernel("DeformConvGrad", domain=WEFT_DOMAIN, waits=True)
def deform_conv_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """A convolution's gradients of columns and weights; from the columns those of elements, places and mask."""
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


@kernel("Col2Im", host_inputs=(1, 2))
def col2_im(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The elements of all blocks, added up where they lie."""
    data, image, block = required(inputs)
    windows = blocks_of(tuple(image.tolist()), tuple(block.tolist()), attributes.get)
    batch, rows, blocks = data.shape
    places = math.prod(windows.kernel)
    if rows % places or blocks != math.prod(windows.count):
        raise ValueError(f"{rows} x {blocks} are not {places} places of {math.prod(windows.count)} blocks")
    shape = (rows // places, *windows.kernel, batch, *windows.count)
    return (scattered(context.xp, data.swapaxes(0, 1).reshape(shape), windows),)


@kernel("Col2ImGrad", domain=WEFT_DOMAIN, host_inputs=(2, 3))
def col2_im_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Each element of every block: the gradient of the image where it lies."""
    gradient, data, image, block = required(inputs)
    windows = blocks_of(tuple(image.tolist()), tuple(block.tolist()), attributes.get)
    batch, rows, blocks = data.shape
    lowered = columns(context.xp, gradient, windows, 1)
    return (lowered.reshape(rows, batch, blocks).swapaxes(0, 1),)
