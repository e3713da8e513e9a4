"""Pooling over windows and regions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft_graph.attributes import as_int
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.shapes.windows import Windows, unpooled, windows_of
from weft_kernels.arguments import optional, required
from weft_kernels.cuda import windows as cuda
from weft_kernels.element_types import is_float, statistics_dtype
from weft_kernels.indexing.rows import checked_indices, summed_rows
from weft_kernels.kernel import Array, Attributes, Inputs, KernelContext, Outputs, kernel
from weft_kernels.norms import norm_share, norm_slope, powered, root
from weft_kernels.reductions import extreme
from weft_kernels.sampling.boxes import BoxPoints, box_points, largest, weighed
from weft_kernels.sampling.taps import rows_of, sampled, spread, unrowed
from weft_kernels.sampling.whole_bins import largest_of_bins
from weft_kernels.windows.views import inside, padded, padded_shape, places, weights


@kernel("MaxPool")
def max_pool(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The largest element of each window; where several are, the first in row-major order is the one."""
    (data,) = required(inputs)
    windows = windows_of(data.shape[2:], attributes.get)
    around = padded(context.xp, data, windows, _lowest(data))
    largest: Array | None = None
    for _, part in places(windows):
        here = around[part]
        largest = here.copy() if largest is None else context.xp.maximum(largest, here, out=largest)
    assert largest is not None, "a kernel has at least one place"
    if not context.asks(1):
        return (largest,)
    return largest, _indices(context.xp, data, largest, windows, by_column=as_int(attributes["storage_order"]) == 1)


def _lowest(data: Array) -> float:
    return -math.inf if is_float(data.dtype) else int(np.iinfo(data.dtype).min)


def _indices(xp: Any, data: Array, largest: Array, windows: Windows, *, by_column: bool) -> Array:
    """Place of each window's largest element in the flattened input; `by_column` counts its spatial part backwards."""
    rank = len(windows.size)
    around = padded(xp, data, windows, _lowest(data))
    result = xp.full(largest.shape, -1, dtype=xp.int64)
    dims = range(rank) if by_column else range(rank - 1, -1, -1)
    for place, part in places(windows):
        flat, real = xp.zeros((), dtype=xp.int64), xp.ones((), dtype=bool)
        step = 1
        for axis in dims:
            along = place[axis] * windows.dilations[axis] - windows.begin[axis]
            coordinate = along + windows.strides[axis] * xp.arange(windows.count[axis], dtype=xp.int64)
            coordinate = coordinate.reshape(-1, *(1,) * (rank - 1 - axis))
            real = real & (coordinate >= 0) & (coordinate < windows.size[axis])
            flat = flat + coordinate * step
            step *= windows.size[axis]
        result = xp.where((result < 0) & real & (around[part] == largest), flat, result)
    images = xp.arange(math.prod(data.shape[:2]), dtype=xp.int64) * math.prod(windows.size)
    return result + images.reshape(*data.shape[:2], *(1,) * rank)  # type: ignore[no-any-return]  # xp is Any


@kernel("MaxPoolGrad", domain=WEFT_DOMAIN, in_float32=("bfloat16",))
def max_pool_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Each window's gradient, added at the first of its largest elements."""
    xp = context.xp
    gradient, data, output = required(inputs)
    windows = windows_of(data.shape[2:], attributes.get)
    if cuda.fits(xp, data, windows):
        return (cuda.max_pool_grad(xp, gradient, data, output, windows),)
    around = padded(xp, data, windows, -math.inf)
    result = xp.zeros(around.shape, dtype=gradient.dtype)
    left = xp.ones(output.shape, dtype=bool)
    for _, part in places(windows):
        chosen = left & (around[part] == output)
        result[part] += gradient * chosen
        left &= ~chosen
    return (result[inside(windows)],)


@kernel("MaxUnpool", host_inputs=(2,))
def max_unpool(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Each element put where its index says; where two have one index, the later stays on a CPU, either on a GPU."""
    xp = context.xp
    data, indices = required(inputs, 2)
    shape = (*data.shape[:2], *unpooled(data.shape[2:], attributes.get))
    index = checked_indices(xp, indices, math.prod(shape), wraps=False).reshape(-1)
    result = xp.zeros(math.prod(shape), dtype=data.dtype)
    result[index] = data.reshape(-1)
    result = result.reshape(shape)
    asked = optional(inputs, 2)
    if asked is None or tuple(asked.tolist()) == shape:
        return (result,)
    target = tuple(int(length) for length in asked.tolist())
    if len(target) != len(shape) or any(given < natural for given, natural in zip(target, shape, strict=True)):
        raise ValueError(f"output_shape {list(target)} is smaller than the windows': {list(shape)}")
    # Indices are places of the windows' own shape; what is asked for beyond it is zeros behind.
    wider = xp.zeros(target, dtype=data.dtype)
    wider[tuple(slice(length) for length in shape)] = result
    return (wider,)


@kernel("MaxUnpoolGrad", domain=WEFT_DOMAIN)
def max_unpool_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The gradient of each element, where it was put."""
    xp = context.xp
    gradient, indices = required(inputs)
    shape = (*indices.shape[:2], *unpooled(indices.shape[2:], attributes.get))
    natural = gradient[tuple(slice(length) for length in shape)]
    return (xp.take(natural.reshape(-1), indices),)


@kernel("AveragePool", in_float32=("float16", "bfloat16"))
def average_pool(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The mean of each window."""
    xp = context.xp
    (data,) = required(inputs)
    windows = windows_of(data.shape[2:], attributes.get)
    around = padded(xp, data, windows, 0)
    total = xp.zeros((*data.shape[:2], *windows.count), dtype=data.dtype)
    for _, part in places(windows):
        total += around[part]
    total *= weights(xp, windows, data.dtype, include_pad=bool(as_int(attributes["count_include_pad"])))
    return (total,)


@kernel("AveragePoolGrad", domain=WEFT_DOMAIN, in_float32=("float16", "bfloat16"))
def average_pool_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Each window's gradient, shared among the elements that it is the mean of."""
    xp = context.xp
    gradient, data = required(inputs)
    windows = windows_of(data.shape[2:], attributes.get)
    share = gradient * weights(xp, windows, gradient.dtype, include_pad=bool(as_int(attributes["count_include_pad"])))
    result = xp.zeros(padded_shape(data, windows), dtype=gradient.dtype)
    for _, part in places(windows):
        result[part] += share
    return (result[inside(windows)],)


@kernel("LpPool")
def lp_pool(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The root of each window's sum of powers."""
    xp = context.xp
    (data,) = required(inputs)
    windows, p = windows_of(data.shape[2:], attributes.get), as_int(attributes["p"])
    around = padded(xp, powered(xp, data.astype(statistics_dtype(xp, data), copy=False), p), windows, 0)
    total = xp.zeros((*data.shape[:2], *windows.count), dtype=around.dtype)
    for _, part in places(windows):
        total += around[part]
    return (root(xp, total, p).astype(data.dtype, copy=False),)


@kernel("LpPoolGrad", domain=WEFT_DOMAIN)
def lp_pool_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Each window's share, added to its elements, times the slope of each."""
    xp = context.xp
    gradient, data, output = required(inputs)
    windows, p = windows_of(data.shape[2:], attributes.get), as_int(attributes["p"])
    dtype = statistics_dtype(xp, data)
    share = norm_share(xp, gradient.astype(dtype, copy=False), output.astype(dtype, copy=False), p)
    result = xp.zeros(padded_shape(data, windows), dtype=dtype)
    for _, part in places(windows):
        result[part] += share
    slope = norm_slope(xp, data.astype(dtype, copy=False), p)
    return ((result[inside(windows)] * slope).astype(data.dtype, copy=False),)


@kernel("GlobalAveragePool", in_float32=("float16", "bfloat16"))
def global_average_pool(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The mean over all spatial dimensions."""
    (data,) = required(inputs)
    return (context.xp.mean(data, axis=tuple(range(2, data.ndim)), keepdims=True, dtype=data.dtype),)


@kernel("GlobalLpPool")
def global_lp_pool(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The root of the sum of powers over all spatial dimensions."""
    xp = context.xp
    (data,) = required(inputs)
    p = as_int(attributes["p"])
    powers = powered(xp, data.astype(statistics_dtype(xp, data), copy=False), p)
    total = xp.sum(powers, axis=tuple(range(2, data.ndim)), keepdims=True)
    return (root(xp, total, p).astype(data.dtype, copy=False),)


@kernel("GlobalMaxPool")
def global_max_pool(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The largest element over all spatial dimensions."""
    (data,) = required(inputs)
    return (extreme(context.xp, data, tuple(range(2, data.ndim)), keepdims=True, largest=True),)


@kernel("MaxRoiPool", host_inputs=(1,))
def max_roi_pool(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The largest element of each bin of each box."""
    data, rois = required(inputs)
    return (largest_of_bins(context.xp, data, rois, attributes)[0],)


@kernel("MaxRoiPoolGrad", domain=WEFT_DOMAIN, host_inputs=(2,))
def max_roi_pool_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Each bin's gradient, added at its largest element."""
    xp = context.xp
    gradient, data, rois = required(inputs)
    _, place = largest_of_bins(xp, data, rois, attributes)
    summed = summed_rows(xp, gradient.reshape(-1, 1), place.reshape(-1), data.size)
    return (summed.reshape(data.shape).astype(data.dtype, copy=False),)


@kernel("RoiAlign", host_inputs=(1, 2))
def roi_align(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Each bin is the mean of its points, or the largest of all weighed elements around them, as in ONNX's cases."""
    xp = context.xp
    data, rois, images = required(inputs)
    rows = rows_of(xp, data, statistics_dtype(xp, data))
    bins = (as_int(attributes["output_height"]), as_int(attributes["output_width"]))
    result = xp.zeros((len(rois), bins[0] * bins[1], data.shape[1]), dtype=rows.dtype)
    for group in box_points(rois, images, data.shape, attributes):
        if group.shape[2] == 0:
            continue
        if attributes["mode"] == "max":
            bins_of_group = largest(xp, rows, group)
        else:
            bins_of_group = sampled(xp, rows, group.taps(xp)).reshape(*group.shape, -1).mean(axis=2)
        result[xp.asarray(group.boxes)] = bins_of_group
    return (result.reshape(len(rois), *bins, data.shape[1]).transpose(0, 3, 1, 2).astype(data.dtype, copy=False),)


@kernel("RoiAlignGrad", domain=WEFT_DOMAIN, host_inputs=(2, 3))
def roi_align_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Each bin's gradient, shared among the elements around its points; or given to the first of the largest."""
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
