"""Windows over arrays (batch, channels, spatial ...): padding, and one strided view for each place in the kernel."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from weft_graph.shapes.windows import Windows
from weft_kernels.cuda import windows as cuda
from weft_kernels.kernel import Array

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
    if cuda.fits(xp, array, windows):
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


def scattered(xp: Any, array: Array, windows: Windows) -> Array:
    """The reverse of `columns` for `array` (channels, kernel ..., batch, windows ...): each element is added to the
    input that it was copied from. Returns (batch, channels, spatial ...)."""
    if cuda.fits(xp, array, windows):
        return cuda.scattered(xp, array, windows)
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
