"""The largest element of each window; where several are, the first in row-major order is the one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.windows import Windows, windows_of
from weft_kernels.arguments import required
from weft_kernels.element_types import is_float
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.windows.views import padded, places


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
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
