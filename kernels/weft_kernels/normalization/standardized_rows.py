"""Rows of mean 0 and variance 1: what LayerNormalization, InstanceNormalization and GroupNormalization share."""

from __future__ import annotations

import math
from typing import Any

from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array


def standardized(xp: Any, rows: Array, epsilon: float) -> tuple[Array, Array, Array]:
    """(rows (n, elements) less their mean times `inverse`, mean (n, 1), inverse (n, 1) = 1 / sqrt(variance + epsilon)).

    All three are of the type that statistics are summed in.
    """
    dtype, count = statistics_dtype(xp, rows), max(rows.shape[1], 1)
    mean = xp.sum(rows, axis=1, keepdims=True, dtype=dtype) / count
    normal = rows.astype(dtype, copy=False) - mean
    inverse = 1 / xp.sqrt(xp.sum(xp.square(normal), axis=1, keepdims=True, dtype=dtype) / count + epsilon)
    normal *= inverse
    return normal, mean, inverse


def standardized_gradient(xp: Any, gradient: Array, normal: Array, inverse: Array) -> Array:
    """The gradient of the rows, by that of `normal`, a new array: Ba, Kiros and Hinton, "Layer normalization", 2016."""
    count = max(normal.shape[1], 1)
    result = gradient - xp.sum(gradient, axis=1, keepdims=True, dtype=normal.dtype) / count
    result -= normal * (xp.sum(gradient * normal, axis=1, keepdims=True, dtype=normal.dtype) / count)
    result *= inverse
    return result  # type: ignore[no-any-return]  # xp is Any


def over_root_mean_square(xp: Any, rows: Array, epsilon: float) -> tuple[Array, Array]:
    """(rows (n, elements) times `inverse`, inverse (n, 1) = 1 / sqrt(mean square + epsilon)), as wide as statistics."""
    dtype, count = statistics_dtype(xp, rows), max(rows.shape[1], 1)
    wide = rows.astype(dtype, copy=False)
    inverse = 1 / xp.sqrt(xp.sum(xp.square(wide), axis=1, keepdims=True, dtype=dtype) / count + epsilon)
    return wide * inverse, inverse


def centred_along(xp: Any, data: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """(data less its mean along the axes, its deviation there with these dimensions 1), as wide as statistics."""
    dtype = statistics_dtype(xp, data)
    count = max(math.prod(data.shape[axis] for axis in axes), 1)
    centred = data - xp.sum(data, axis=axes, keepdims=True, dtype=dtype) / count
    return centred, xp.sqrt(xp.sum(xp.square(centred), axis=axes, keepdims=True, dtype=dtype) / count)


def stash_of(xp: Any, data: Array, number: int) -> Any:
    """The type that statistics are given in: see `weft_graph.operators.normalization`."""
    return data.dtype if data.dtype == xp.float64 else DTYPE_OF_NUMBER[number].numpy


def group_rows(data: Array, groups: int) -> Array:
    """(batch, channels, ...) with a row for each sample's group of channels."""
    return data.reshape(data.shape[0] * groups, math.prod(data.shape[1:]) // groups)


def normalized_groups(xp: Any, data: Array, scale: Array, bias: Array, *, groups: int, epsilon: float) -> Array:
    """Each sample's groups of channels standardized, then scaled and shifted by numbers (channels,)."""
    normal, _, _ = standardized(xp, group_rows(data, groups), epsilon)
    beside = (-1, *(1,) * (data.ndim - 2))
    scale, bias = (array.reshape(beside).astype(normal.dtype, copy=False) for array in (scale, bias))
    result: Array = normal.reshape(data.shape) * scale + bias
    return result.astype(data.dtype, copy=False)
