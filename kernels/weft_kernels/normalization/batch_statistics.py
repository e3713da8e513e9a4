"""Statistics of a batch by channel (axis 1), and their place beside the data."""

from __future__ import annotations

import math
from typing import Any

from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array


def other_axes(data: Array) -> tuple[int, ...]:
    """All axes but the channels'."""
    return (0, *range(2, data.ndim))


def beside(data: Array, by_channel: Array) -> Array:
    """One number a channel, (channels,), shaped so that it broadcasts against the data."""
    return by_channel.reshape(1, -1, *(1,) * (data.ndim - 2))


def samples_of(data: Array) -> int:
    """Elements of a channel."""
    return math.prod(data.shape[axis] for axis in other_axes(data))


def batch_statistics(xp: Any, data: Array, out: Array | None = None) -> tuple[Array, Array, Array]:
    """(data less its mean, mean (channels,), biased variance (channels,)); 0 and 0 where there is no element.

    The first is written to `out`, which may be the data's memory: it is not read after that.
    """
    axes, dtype = other_axes(data), statistics_dtype(xp, data)
    count = max(samples_of(data), 1)
    mean = xp.sum(data, axis=axes, dtype=dtype) / count
    centred = xp.subtract(data, beside(data, mean), out=out)
    variance = xp.sum(xp.square(centred), axis=axes, dtype=dtype) / count
    return centred, mean, variance
