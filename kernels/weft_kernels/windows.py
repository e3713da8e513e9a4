"""Windows over spatial dimensions: views of them, and convolutions as matrix products."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.windows import Windows, windows_of
from weft_kernels.cuda import kernels as cuda
from weft_kernels.kernel import Array

# ----------------------------------------------------------------------------------------------------------------------
# Windows over arrays (batch, channels, spatial ...): padding, and one strided view for each place in the kernel.


Index = tuple[Any, ...]
"""What selects a part of an array: an ellipsis and a slice for each spatial dimension."""


def padded(xp: Any, array: Array, windows: Windows, fill: float) -> Array:
    """The array with `fill` around its spatial dimensions, wide enough for every window; itself where nothing is."""
    shape = padded_shape(array, windows)
    if shape == array.shape:
        return array
    result: Array = xp.full(shape, fill, dtype=array.dtype)
    result[inside(windows)] = array
    return result


def padded_shape(array: Array, windows: Windows) -> tuple[int, ...]:
    """The shape of the array once it is wide enough for every window."""
    return (*array.shape[: -len(windows.size)], *padded_size(windows))


def padded_size(windows: Windows) -> tuple[int, ...]:
    """The spatial dimensions of what is wide enough for every window."""
    return tuple(sum(dims) for dims in zip(windows.begin, windows.size, windows.reach, strict=True))


def inside(windows: Windows) -> Index:
    """Where the array itself lies in its padded form, along the spatial dimensions."""
    return (..., *(slice(begin, begin + size) for begin, size in zip(windows.begin, windows.size, strict=True)))


def places(windows: Windows) -> Iterator[tuple[tuple[int, ...], Index]]:
    """For each place in the kernel, in row-major order: its coordinates, and the part of the padded array that is
    what every window has at that place."""
    for place in itertools.product(*(range(size) for size in windows.kernel)):
        yield (
            place,
            (
                ...,
                *(
                    slice(at * dilation, at * dilation + (count - 1) * stride + 1, stride)
                    for at, dilation, count, stride in zip(
                        place, windows.dilations, windows.count, windows.strides, strict=True
                    )
                ),
            ),
        )


def columns(xp: Any, array: Array, windows: Windows, groups: int) -> Array:
    """(groups, channels of a group * places of the kernel, batch * windows): what one matrix product convolves."""
    if cuda.windows_fit(xp, array, windows):
        return cuda.columns(xp, array, windows, groups)
    rank = len(windows.size)
    batch, channels = array.shape[:2]
    view = xp.lib.stride_tricks.sliding_window_view(
        padded(xp, array, windows, 0), windows.extent, axis=tuple(range(2, 2 + rank))
    )
    steps: Index = tuple(slice(None, None, step) for step in (*windows.strides, *windows.dilations))
    view = view[(..., *steps)]
    # The channel and the place in the kernel lead: a copy in this order runs along the input's last dimension.
    order = (1, *range(2 + rank, 2 + 2 * rank), 0, *range(2, 2 + rank))
    rows = channels // groups * math.prod(windows.kernel)
    result: Array = view.transpose(order).reshape(groups, rows, batch * math.prod(windows.count))
    return result


def scattered(xp: Any, array: Array, windows: Windows, out: Array | None = None) -> Array:
    """The reverse of `columns` for `array` (channels, kernel ..., batch, windows ...): each element is added to the
    input that it was copied from. Returns (batch, channels, spatial ...), on a device in `out` where it can be."""
    if cuda.windows_fit(xp, array, windows):
        return cuda.scattered(xp, array, windows, out)
    rank = len(windows.size)
    channels, batch = array.shape[0], array.shape[1 + rank]
    result: Array = xp.zeros((channels, batch, *padded_size(windows)), dtype=array.dtype)
    add_scattered(array, result, windows)
    spatial: Array = result[inside(windows)]
    return spatial.swapaxes(0, 1)


def add_scattered(array: Array, padded: Array, windows: Windows) -> None:
    """The same, added to `padded` (channels, batch, padded spatial ...)."""
    for place, part in places(windows):
        at: Index = (slice(None), *place)
        padded[part] += array[at]


def weights(xp: Any, windows: Windows, dtype: Any, *, include_pad: bool) -> Array:
    """1 / (places of each window that count), (windows ...): those inside the input, or inside its declared padding.

    What ceil_mode adds beyond the padding never counts.
    """
    counted: Array = xp.ones((), dtype=dtype)
    for axis, size in enumerate(windows.size):
        low, high = (-windows.begin[axis], size + windows.end[axis]) if include_pad else (0, size)
        first = windows.strides[axis] * xp.arange(windows.count[axis]) - windows.begin[axis]
        covered = first[:, None] + windows.dilations[axis] * xp.arange(windows.kernel[axis])
        here = ((covered >= low) & (covered < high)).sum(axis=1).astype(dtype)
        counted = counted[..., None] * here
    # A dilated window may skip every element there is; its mean is then 0, as its sum is.
    return 1 / xp.maximum(counted, 1)  # type: ignore[no-any-return]  # xp is Any


# ----------------------------------------------------------------------------------------------------------------------
# Convolutions as matrix products, and their transposes, in blocks of images whose windows stay in a host's caches.
#
# Each image's windows are laid out as columns (channels of a group * places of the kernel, windows), which would take
# the kernel's places times the input's memory if all images' were made at once.


HOST_ELEMENTS: Final = 1 << 21
"""Elements of the columns of one block on the host, or as many as one image's, or as the weights.

Of 2^19 to 2^22 and of no bound this is the fastest for ResNet's layers at batch 24 on one core: all three products of
five of them take 1.32 s of processor time, 1.72 without a bound, and 1.08 the matrix products alone.
"""

DEVICE_ELEMENTS: Final = 1 << 27
"""The same on a device, which wants large products: half a gigabyte of float32.

On a device columns are (K, M), with K = channels * places of the kernel and M = batch * windows, because each of the
three products then is one GEMM whose operands cuBLAS takes as they lie, F being the features: (F, K) by (K, M) forward,
(K, F) by (F, M) for the input's gradient, (F, M) by (M, K) for the weights'. im2col and col2im read and write along M,
the long dimension, and images where they lie, in rows or with channels leading: no activation is copied for its order,
and a 1 x 1 kernel needs no columns at all. In float32 columns take 4 K M bytes, written once and read once, 9 times
the input for 3 x 3. What a layer makes, (F, M), has its channels leading: sums by channel run along memory.

Against (batch, K, windows): the same bytes in batch GEMMs that each read the weights, and the weights' gradient is a
sum of batch matrices (F, K). Against (M, K), channels last: the same bytes and the same GEMMs, transposed, but sums by
channel jump by F. Pieces of columns in shared memory (implicit GEMM) would save all 8 K M bytes; that is cuDNN's.
"""

_FEW_GROUPS: Final = 16
"""Groups up to which a device is given each group's product by itself."""


def convolved(
    xp: Any, data: Array, weights: Array, attributes: Mapping[str, AttributeValue], out: Array | None = None
) -> Array:
    """The convolution of data (batch, channels, ...), whole numbers too: (batch, features, windows ...).

    The features lead in memory, which is also how the gradients want to read it; only the view is ONNX's order. It is
    `out` where that lies so, a new array otherwise.
    """
    group, features, batch = as_int(attributes["group"]), weights.shape[0], data.shape[0]
    windows = windows_of(data.shape[2:], attributes.get, weights.shape[2:])
    kernels = weights.reshape(group, features // group, -1)
    result = _leading(xp, (features, batch, *windows.count), data.dtype, out)
    wide = result.reshape(group, features // group, batch, math.prod(windows.count))
    for part in _blocks(xp, data, windows, kernels):
        lowered = columns(xp, data[part], windows, group)
        _product(xp, kernels, lowered, wide[:, :, part].reshape(group, features // group, lowered.shape[2]))
    return result.swapaxes(0, 1)


def spread(xp: Any, output: Array, weights: Array, windows: Windows, *, group: int, out: Array | None = None) -> Array:
    """Each element of `output` (batch, features, windows ...) spread by the weights: (batch, channels, spatial ...).

    The gradient of a convolution's input, and a transposed convolution. The channels lead in memory. It may be `out`,
    where that lies so and no padding stands around it.
    """
    batch, features = output.shape[:2]
    kernels = weights.reshape(group, features // group, -1).swapaxes(1, 2)
    channels, count = weights.shape[1] * group, math.prod(windows.count)
    if cuda.is_plain(windows):
        result = _leading(xp, (channels, batch, *windows.size), output.dtype, out)
        wide = result.reshape(group, channels // group, batch, count)
        for part in _blocks(xp, output, windows, kernels):
            given = output[part].swapaxes(0, 1).reshape(group, features // group, -1)
            _product(xp, kernels, given, wide[:, :, part].reshape(group, channels // group, given.shape[2]))
        return result.swapaxes(0, 1)
    if xp is not np:
        given = output.swapaxes(0, 1).reshape(group, features // group, -1)
        lowered = xp.empty((group, kernels.shape[1], given.shape[2]), dtype=output.dtype)
        _product(xp, kernels, given, lowered)
        return scattered(xp, lowered.reshape(channels, *windows.kernel, batch, *windows.count), windows, out)
    around = _leading(xp, (channels, batch, *padded_size(windows)), output.dtype, out)
    around[...] = 0
    for part in _blocks(xp, output, windows, kernels):
        given = output[part].swapaxes(0, 1).reshape(group, features // group, -1)
        images = part.stop - part.start
        lowered = xp.empty((group, kernels.shape[1], given.shape[2]), dtype=output.dtype)
        _product(xp, kernels, given, lowered)
        add_scattered(lowered.reshape(channels, *windows.kernel, images, *windows.count), around[:, part], windows)
    spatial: Array = around[inside(windows)]
    return spatial.swapaxes(0, 1)


def weights_gradient(
    xp: Any,
    gradient: Array,
    data: Array,
    shape: tuple[int, ...],
    windows: Windows,
    *,
    group: int,
    out: Array | None = None,
) -> Array:
    """The gradient of a convolution's weights (features, channels / group, kernel ...) = `shape`, from that of its
    result and its input; on a device in `out` where it can be."""
    features = shape[0]
    if xp is not np and group <= _FEW_GROUPS:
        return _device_weights_gradient(xp, gradient, data, shape, windows, group=group, out=out)
    # The columns first, which are the larger: the other way round they would be read across.
    result: Array = xp.zeros((group, math.prod(shape[1:]), features // group), dtype=gradient.dtype)
    for part in _blocks(xp, data, windows, result):
        lowered = columns(xp, data[part], windows, group)
        output = gradient[part].swapaxes(0, 1).reshape(group, features // group, lowered.shape[2]).swapaxes(1, 2)
        if group == 1:
            result[0] += xp.matmul(lowered[0], output[0])
        else:
            result += xp.matmul(lowered, output)
    return result.swapaxes(1, 2).reshape(shape)


def _device_weights_gradient(
    xp: Any,
    gradient: Array,
    data: Array,
    shape: tuple[int, ...],
    windows: Windows,
    *,
    group: int,
    out: Array | None,
) -> Array:
    """One product for each group, features first, which is how the weights lie: cuBLAS takes transposed matrices as
    they are, and CuPy copies those of a stack."""
    features = shape[0] // group
    fits = out is not None and out.dtype == gradient.dtype and out.flags.c_contiguous
    made = out if out is not None and fits else xp.empty(shape, dtype=gradient.dtype)
    result, parts = made.reshape(group, features, -1), _blocks(xp, data, windows, made)
    for number, part in enumerate(parts):
        lowered = columns(xp, data[part], windows, group)
        output = gradient[part].swapaxes(0, 1).reshape(group, features, lowered.shape[2])
        for each in range(group):
            if number == 0:
                xp.matmul(output[each], lowered[each].T, out=result[each])
            else:
                result[each] += xp.matmul(output[each], lowered[each].T)
    if data.shape[0] == 0:
        made.fill(0)
    return made


def _leading(xp: Any, shape: tuple[int, ...], dtype: Any, out: Array | None) -> Array:
    """An array of that shape, whose first two dimensions `out` has the other way round: its memory, or new one."""
    if out is not None and out.dtype == dtype:
        turned = out.swapaxes(0, 1)
        if turned.shape == shape and turned.flags.c_contiguous:
            return turned
    return xp.empty(shape, dtype=dtype)  # type: ignore[no-any-return]  # xp is Any


def _product(xp: Any, left: Array, right: Array, out: Array) -> None:
    """Products of stacks of matrices; of one as a plain product, which NumPy does much faster than a stack of one.

    Columns times rows, which depthwise convolutions ask for, are faster element by element.
    """
    if left.shape[2] == 1:
        xp.multiply(left, right, out=out)
    elif len(left) == 1:
        xp.matmul(left[0], right[0], out=out[0])
    else:
        xp.matmul(left, right, out=out)


def _blocks(xp: Any, data: Array, windows: Windows, kernels: Array) -> Iterator[slice]:
    """Images in blocks; all at once where their columns are the data itself."""
    batch = data.shape[0]
    each = max(1, data.shape[1] * math.prod(windows.kernel) * math.prod(windows.count))
    most = max(HOST_ELEMENTS if xp is np else DEVICE_ELEMENTS, kernels.size)
    if cuda.is_plain(windows) and data.swapaxes(0, 1).flags.c_contiguous:
        most = each * max(batch, 1)
    step = max(1, most // each)
    for first in range(0, batch, step):
        yield slice(first, min(first + step, batch))
