"""Pooling over windows and regions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from weft_graph.attributes import as_float, as_int, as_ints
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.shapes.windows import Windows, unpooled, windows_of
from weft_kernels.arguments import optional, required
from weft_kernels.cuda import kernels as cuda
from weft_kernels.element_types import is_float, statistics_dtype
from weft_kernels.indexing import checked_indices, summed_rows
from weft_kernels.kernel import Array, Attributes, Inputs, KernelContext, Outputs, kernel
from weft_kernels.reductions import extreme
from weft_kernels.sampling import Tap, combined, rows_of, sampled, spread, unrowed
from weft_kernels.windows import inside, padded, padded_shape, places, weights

# --- The p-norm in parts: the power that is summed, the root of the sum, and the slopes of both -----------------------


def powered(xp: Any, data: Array, p: int) -> Array:
    """|data| ** p."""
    if p == 2:
        return xp.square(data)  # type: ignore[no-any-return]  # xp is Any
    return xp.abs(data) if p == 1 else xp.abs(data) ** p  # type: ignore[no-any-return]  # xp is Any


def root(xp: Any, total: Array, p: int) -> Array:
    """The p-th root of a sum of powers."""
    if p == 2:
        return xp.sqrt(total)  # type: ignore[no-any-return]  # xp is Any
    return total if p == 1 else total ** (1 / p)


def norm_slope(xp: Any, data: Array, p: int) -> Array:
    """sign(data) * |data| ** (p - 1): times `norm_share`, the derivative of the norm by each element."""
    if p == 2:
        return data
    sign: Array = xp.sign(data)
    return sign if p == 1 else sign * xp.abs(data) ** (p - 1)


def norm_share(xp: Any, gradient: Array, norm: Array, p: int) -> Array:
    """gradient / norm ** (p - 1), 0 where the norm is 0."""
    if p == 1:
        return gradient
    is_zero = norm == 0
    return xp.where(is_zero, 0, gradient / xp.where(is_zero, 1, norm) ** (p - 1))  # type: ignore[no-any-return]


# --- The points that RoiAlign samples: worked out on the host from the boxes' numbers, box by box of equal counts -----


BLOCK_ELEMENTS: Final = 1 << 21
"""Numbers of all channels that are read at once for one tap; one box may have more."""

MOST_POINTS: Final = 1 << 22
"""Points of one box. A box of a few numbers could ask for any amount of work."""


@dataclass(frozen=True, slots=True)
class BoxPoints:
    """Boxes with one count of points a bin. Points are (boxes, bins, points of a bin)."""

    boxes: Array
    shape: tuple[int, int, int]
    along: tuple[tuple[Tap, ...], tuple[Tap, ...]]
    images: Array
    size: tuple[int, int]

    def taps(self, xp: Any) -> Iterator[Tap]:
        """The four elements around each point, as rows; on the device."""
        for tap in combined(self.images, self.along, self.size):
            yield Tap(xp.asarray(tap.elements), xp.asarray(tap.weights), ())


def box_points(
    rois: Array, images: Array, data_shape: tuple[int, ...], attributes: Mapping[str, AttributeValue]
) -> Iterator[BoxPoints]:
    """All boxes, in groups of equal counts. Raises ValueError for a bad image or number, or one box of far too much."""
    batch, channels, *size = data_shape
    if images.size and (int(images.min()) < 0 or int(images.max()) >= batch):
        raise ValueError(f"batch_indices from {images.min()} to {images.max()} are outside [0, {batch})")
    if not np.isfinite(rois).all():
        raise ValueError("a box has a number that is not finite")
    bins = (as_int(attributes["output_height"]), as_int(attributes["output_width"]))
    start, length = _extents(rois.astype(np.float64), attributes)
    counts = _counts(length / bins, as_int(attributes["sampling_ratio"]))
    points = counts.prod(axis=1) * (bins[0] * bins[1])
    if points.size and points.max() > MOST_POINTS:
        raise ValueError(
            f"box {int(points.argmax())} has {int(points.max())} points to sample, more than {MOST_POINTS}"
        )
    for pair in np.unique(counts, axis=0).astype(int):
        same = np.flatnonzero((counts == pair).all(axis=1))
        step = max(1, BLOCK_ELEMENTS // max(1, int(pair.prod()) * bins[0] * bins[1] * channels))
        for first in range(0, len(same), step):
            chosen = same[first : first + step]
            extents = (start[chosen], length[chosen])
            yield _points(chosen, extents, images[chosen], bins=bins, counts=pair, size=(size[0], size[1]))


def weighed(xp: Any, rows: Array, group: BoxPoints) -> Iterator[tuple[Tap, Array]]:
    """Each tap, and its element times its weight for every point: (boxes, bins, points of a bin, channels)."""
    for tap in group.taps(xp):
        yield tap, (rows[tap.elements] * tap.weights.astype(rows.dtype)[:, None]).reshape(*group.shape, rows.shape[1])


def largest(xp: Any, rows: Array, group: BoxPoints) -> Array:
    """The largest of all weighed elements around the points of each bin: (boxes, bins, channels)."""
    best: Array | None = None
    for _, part in weighed(xp, rows, group):
        here = part.max(axis=2)
        best = here if best is None else xp.maximum(best, here)
    assert best is not None, "a point has four taps"
    return best


def _extents(rois: Array, attributes: Mapping[str, AttributeValue]) -> tuple[Array, Array]:
    """(beginnings, lengths), each (boxes, 2) with the height first, in elements of the input."""
    scale = as_float(attributes["spatial_scale"])
    is_shifted = attributes["coordinate_transformation_mode"] == "half_pixel"
    start, end = rois[:, 1::-1] * scale, rois[:, 3:1:-1] * scale
    length = end - start
    return (start - 0.5, length) if is_shifted else (start, np.maximum(length, 1))


def _counts(bin_length: Array, ratio: int) -> Array:
    """Points of a bin along both dimensions: as asked for, or as many as elements that the bin covers."""
    if ratio > 0:
        return np.full(bin_length.shape, float(ratio))
    return np.maximum(np.ceil(bin_length), 0)


def _points(
    boxes: Array,
    extents: tuple[Array, Array],
    images: Array,
    *,
    bins: tuple[int, int],
    counts: Array,
    size: tuple[int, int],
) -> BoxPoints:
    (start, length), (high, wide), (down, across) = extents, bins, counts
    shape = (len(boxes), high, wide, int(down), int(across))
    along = []
    for axis in (0, 1):
        bin_length = length[:, axis] / bins[axis]
        step = np.arange(bins[axis])[:, None] + (np.arange(counts[axis]) + 0.5) / max(int(counts[axis]), 1)
        places = start[:, axis, None, None] + step * bin_length[:, None, None]
        wide_places = places[:, :, None, :, None] if axis == 0 else places[:, None, :, None, :]
        along.append(_taps(np.broadcast_to(wide_places, shape).reshape(-1), size[axis]))
    points = int(down) * int(across)
    owner = np.repeat(images.astype(np.int64), high * wide * points)
    return BoxPoints(boxes, (len(boxes), high * wide, points), (along[0], along[1]), owner, size)


def _taps(places: Array, size: int) -> tuple[Tap, ...]:
    """The two elements beside each place: the edge's up to one beyond it, none farther out."""
    is_near = (places >= -1) & (places <= size)
    within = np.clip(places, 0, max(size - 1, 0))
    low = np.minimum(np.floor(within), max(size - 2, 0))
    share = within - low
    first = np.where(is_near & (size > 0), low, -1).astype(np.int64)
    second = np.where(is_near & (size > 1), low + 1, -1).astype(np.int64)
    return Tap(first, 1 - share, (share,)), Tap(second, share, (share,))


SHORT_ROW: Final = 32
"""Windows in a row below which NumPy takes longer to begin one than to go through it: images and channels, of which
there are more, go last in memory then."""


# --- MaxRoiPool's bins: whole elements, from each box's numbers on the host; and the largest of each bin --------------


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


@kernel("MaxPool")
def max_pool(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The largest element of each window; where several are, the first in row-major order is the one."""
    (data,) = required(inputs)
    windows = windows_of(data.shape[2:], attributes.get)
    largest: Array | None = None
    if cuda.windows_fit(context.xp, data, windows):
        largest = cuda.max_pool(context.xp, data, windows, context.out(0))
    else:
        around = padded(context.xp, data, windows, _lowest(data))
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
    if cuda.windows_fit(xp, data, windows):
        return (cuda.max_pool_grad(xp, gradient, data, output, windows, out=context.out(0)),)
    around = padded(xp, data, windows, -math.inf)
    rank, turns = len(windows.size), xp is np and windows.count[-1] < SHORT_ROW
    if turns:
        around, output, gradient = (
            np.ascontiguousarray(np.moveaxis(array, (0, 1), (rank, rank + 1))) for array in (around, output, gradient)
        )
    result = xp.zeros(around.shape, dtype=gradient.dtype)
    left = xp.ones(output.shape, dtype=bool)
    for _, part in places(windows):
        here = part[1:] if turns else part
        chosen = left & (around[here] == output)
        result[here] += gradient * chosen
        left &= ~chosen
    if turns:
        result = np.moveaxis(result, (rank, rank + 1), (0, 1))
    return (np.ascontiguousarray(result[inside(windows)]) if turns else result[inside(windows)],)


@kernel("MaxUnpool", host_inputs=(2,), waits=True)
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
    total = context.out(0, data.dtype)
    total = xp.empty((*data.shape[:2], *windows.count), dtype=data.dtype) if total is None else total
    total[...] = 0
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
    axes, out = tuple(range(2, data.ndim)), context.out(0, data.dtype)
    return (context.xp.mean(data, axis=axes, keepdims=True, dtype=data.dtype, out=out),)


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


@kernel("MaxRoiPool", host_inputs=(1,), waits=True)
def max_roi_pool(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The largest element of each bin of each box."""
    data, rois = required(inputs)
    return (largest_of_bins(context.xp, data, rois, attributes)[0],)


@kernel("MaxRoiPoolGrad", domain=WEFT_DOMAIN, host_inputs=(2,), waits=True)
def max_roi_pool_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Each bin's gradient, added at its largest element."""
    xp = context.xp
    gradient, data, rois = required(inputs)
    _, place = largest_of_bins(xp, data, rois, attributes)
    summed = summed_rows(xp, gradient.reshape(-1, 1), place.reshape(-1), data.size)
    return (summed.reshape(data.shape).astype(data.dtype, copy=False),)


@kernel("RoiAlign", host_inputs=(1, 2), waits=True)
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


@kernel("RoiAlignGrad", domain=WEFT_DOMAIN, host_inputs=(2, 3), waits=True)
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
