"""Queries, keys and values by head, and the settings that every block is computed with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft_graph.attributes import as_float, as_int
from weft_graph.ir import AttributeValue
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """q (batch, kv heads, group, queries, size), k (batch, kv heads, 1, keys, size), v (..., 1, keys, value size).

    A group is the heads of queries that share a head of keys. All three may be views of what they were made of.
    """

    q: Array
    k: Array
    v: Array


@dataclass(frozen=True, slots=True)
class Settings:
    """`precision` is the type that softmax rounds to, None where it is the one of the products."""

    scale: float
    softcap: float = 0.0
    precision: Any = None


def settings_of(attributes: Mapping[str, AttributeValue], size: int) -> Settings:
    """The settings of a node whose heads have `size` elements."""
    scale = attributes.get("scale")
    precision = attributes.get("softmax_precision")
    return Settings(
        scale=1 / math.sqrt(size) if scale is None else as_float(scale),
        softcap=as_float(attributes.get("softcap", 0.0)),
        precision=None if precision is None else DTYPE_OF_NUMBER[as_int(precision)].numpy,
    )


def by_head(array: Array, heads: AttributeValue | None) -> Array:
    """(batch, heads, length, size), a view: of that, or of (batch, length, heads * size)."""
    if array.ndim == 4:
        return array
    count = as_int(heads)
    return array.reshape(*array.shape[:2], count, array.shape[2] // count).transpose(0, 2, 1, 3)


def joined(array: Array, rank: int) -> Array:
    """An array by head as an output of `rank` dimensions: the other way of `by_head`."""
    if rank == 4:
        return array
    batch, heads, length, size = array.shape
    return array.transpose(0, 2, 1, 3).reshape(batch, length, heads * size)


def empty_like_output(xp: Any, shape: tuple[int, ...], rank: int, dtype: Any) -> tuple[Array, Array]:
    """(the output, its view by head): a new array, whose heads are joined where `rank` is 3."""
    batch, heads, length, size = shape
    whole = xp.zeros(shape if rank == 4 else (batch, length, heads * size), dtype=dtype)
    return whole, by_head(whole, heads)


def with_past(xp: Any, past: Array | None, new: Array) -> Array:
    """The cache's part, then the new one, along the length."""
    return new if past is None else xp.concatenate((past, new), axis=2)


def grouped(array: Array, kv_heads: int) -> Array:
    """(batch, heads, length, size) as (batch, kv heads, group, length, size), a view."""
    group = array.shape[1] // kv_heads if kv_heads else 0
    return array.reshape(array.shape[0], kv_heads, group, *array.shape[2:])


def wide_dtype(xp: Any, array: Array) -> Any:
    """The type that products are computed in: at least float32."""
    return statistics_dtype(xp, array)
