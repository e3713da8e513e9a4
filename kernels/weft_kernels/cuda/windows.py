"""Convolution's and pooling's windows on a GPU: see `sources/windows.cu`."""

from __future__ import annotations

import math
from typing import Any, Final

from weft_graph.shapes.windows import Windows
from weft_kernels.cuda.module import has_kernels, launch
from weft_kernels.kernel import Array

MOST_DIMENSIONS: Final = 3
_FILE: Final = "windows.cu"


def fits(xp: Any, array: Array, windows: Windows) -> bool:
    """Whether the kernels take arrays of this module, element type and number of spatial dimensions."""
    return has_kernels(xp) and array.dtype.kind == "f" and len(windows.size) <= MOST_DIMENSIONS


def columns(xp: Any, array: Array, windows: Windows, groups: int) -> Array:
    """As `weft_kernels.windows.views.columns`."""
    batch, channels = array.shape[:2]
    rows, width = channels * math.prod(windows.kernel), batch * math.prod(windows.count)
    result: Array = xp.empty((groups, rows // groups, width), dtype=array.dtype)
    data = xp.ascontiguousarray(array)
    launch(xp, _FILE, "im2col", result.size, data, result, batch, channels, *_numbers(windows), types=(array.dtype,))
    return result


def scattered(xp: Any, array: Array, windows: Windows) -> Array:
    """As `weft_kernels.windows.views.scattered`."""
    channels, batch = array.shape[0], array.shape[1 + len(windows.size)]
    result: Array = xp.empty((batch, channels, *windows.size), dtype=array.dtype)
    lowered = xp.ascontiguousarray(array)
    launch(xp, _FILE, "col2im", result.size, lowered, result, batch, channels, *_numbers(windows), types=(array.dtype,))
    return result


def max_pool_grad(xp: Any, gradient: Array, data: Array, output: Array, windows: Windows) -> Array:
    """The gradient of the input `data` (batch, channels, spatial ...), a new array."""
    images, types = math.prod(data.shape[:2]), (data.dtype,)
    data, output, gradient = (xp.ascontiguousarray(array) for array in (data, output, gradient))
    chosen = xp.empty(output.shape, dtype=xp.int32)
    result: Array = xp.empty(data.shape, dtype=gradient.dtype)
    numbers = (images, *_numbers(windows))
    launch(xp, _FILE, "max_pool_choice", chosen.size, data, output, chosen, *numbers, types=types)
    launch(xp, _FILE, "max_pool_spread", result.size, gradient, chosen, result, *numbers, types=types)
    return result


def _numbers(windows: Windows) -> tuple[int, ...]:
    """Three numbers for each field, as the kernels take them; missing dimensions lead."""
    missing = MOST_DIMENSIONS - len(windows.size)
    ones, zeros = (1,) * missing, (0,) * missing
    return (
        *(*ones, *windows.size),
        *(*ones, *windows.kernel),
        *(*ones, *windows.strides),
        *(*ones, *windows.dilations),
        *(*zeros, *windows.begin),
        *(*ones, *windows.count),
    )
