"""Reductions over any axes, none of them and empty ones included."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.axes import reduction_axes
from weft_kernels.element_types import is_float
from weft_kernels.kernel import Array
from weft_kernels.normalization.batch_statistics import statistics_dtype


def axes_and_keepdims(
    given: Array | None, attributes: Mapping[str, AttributeValue], rank: int
) -> tuple[tuple[int, ...], bool]:
    """The axes that a node reduces, counted from the front, and whether they stay with length 1."""
    return reduction_axes(given, attributes, rank), bool(as_int(attributes["keepdims"]))


def summed(xp: Any, data: Array, axes: tuple[int, ...], *, keepdims: bool) -> Array:
    """The sum over the axes; the data itself where there are none."""
    if not axes:
        return data
    return xp.sum(data, axis=axes, keepdims=keepdims, dtype=data.dtype)  # type: ignore[no-any-return]  # xp is Any


def extreme(xp: Any, data: Array, axes: tuple[int, ...], *, keepdims: bool, largest: bool) -> Array:
    """The largest or smallest element over the axes; of none it is the type's lowest or highest value."""
    if not axes:
        return data
    if math.prod(data.shape[axis] for axis in axes) == 0:
        dims = (1 if axis in axes else size for axis, size in enumerate(data.shape) if keepdims or axis not in axes)
        return xp.full(tuple(dims), _bound(xp, data, lowest=largest), dtype=data.dtype)  # type: ignore[no-any-return]  # xp is Any
    result: Array = (xp.max if largest else xp.min)(data, axis=axes, keepdims=keepdims)
    return result


def log_of_sum(xp: Any, data: Array, axes: tuple[int, ...], *, keepdims: bool) -> Array:
    """ln(sum(exp(data))), shifted by the largest element first, so that nothing overflows; -infinity of none."""
    wide = data.astype(statistics_dtype(xp, data), copy=False)
    largest = extreme(xp, wide, axes, keepdims=True, largest=True)
    shift = xp.where(xp.isfinite(largest), largest, wide.dtype.type(0))
    total = xp.log(summed(xp, xp.exp(wide - shift), axes, keepdims=True)) + shift
    result = total if keepdims else xp.squeeze(total, axis=axes)
    return result.astype(data.dtype, copy=False)  # type: ignore[no-any-return]  # xp is Any


def _bound(xp: Any, data: Array, *, lowest: bool) -> float:
    if is_float(data.dtype):
        return -math.inf if lowest else math.inf
    if data.dtype.kind == "b":
        return 0 if lowest else 1
    limits = xp.iinfo(data.dtype)
    return int(limits.min if lowest else limits.max)
