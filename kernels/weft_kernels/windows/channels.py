"""Sums over neighbouring channels: what local response normalization divides by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft_graph.attributes import as_float, as_int
from weft_graph.ir import AttributeValue
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array


def channel_sums(xp: Any, data: Array, *, before: int, after: int) -> Array:
    """For each channel (axis 1) the sum of those from `before` ahead of it to `after` behind it; none is beyond."""
    result = data.copy()
    channels = data.shape[1]
    for shift in range(1, min(before, channels - 1) + 1):
        result[:, shift:] += data[:, :-shift]
    for shift in range(1, min(after, channels - 1) + 1):
        result[:, :-shift] += data[:, shift:]
    return result


def response_base(xp: Any, data: Array, attributes: Mapping[str, AttributeValue]) -> Array:
    """bias + alpha / size * the sum of squares of the `size` channels around each one, in the type of statistics."""
    size = as_int(attributes["size"])
    squares = xp.square(data.astype(statistics_dtype(xp, data), copy=False))
    around = channel_sums(xp, squares, before=(size - 1) // 2, after=size // 2)
    return as_float(attributes["bias"]) + as_float(attributes["alpha"]) / size * around
