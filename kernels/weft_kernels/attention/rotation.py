"""Pairs of elements turned by angles: what RotaryEmbedding and its gradient share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.element_types import statistics_dtype
from weft_kernels.indexing.rows import checked_indices
from weft_kernels.kernel import Array


@dataclass(frozen=True, slots=True)
class Pairs:
    """Where the first and the second of each pair are along the last axis, and how many elements are turned."""

    first: slice
    second: slice
    turned: int


def pairs_of(attributes: Mapping[str, AttributeValue], half: int) -> Pairs:
    """The pairs of a head of which `half` pairs are turned."""
    if as_int(attributes["interleaved"]):
        return Pairs(slice(0, 2 * half, 2), slice(1, 2 * half, 2), 2 * half)
    return Pairs(slice(0, half), slice(half, 2 * half), 2 * half)


def by_token(data: Array, attributes: Mapping[str, AttributeValue]) -> Array:
    """(batch, length, heads, size), a view."""
    if data.ndim == 4:
        return data.transpose(0, 2, 1, 3)
    heads = as_int(attributes["num_heads"])
    return data.reshape(*data.shape[:2], heads, data.shape[2] // heads)


def as_given(tokens: Array, rank: int) -> Array:
    """What is by token in the input's own shape: the other way of `by_token`."""
    if rank == 4:
        return tokens.transpose(0, 2, 1, 3)
    return tokens.reshape(*tokens.shape[:2], tokens.shape[2] * tokens.shape[3])


def places_in(xp: Any, cache: Array, places: Array | None) -> Array | None:
    """The places as rows of the cache. Raises ValueError, with the place, where it has none such."""
    return None if places is None else checked_indices(xp, places, len(cache), wraps=True)


def angles(cache: Array, places: Array | None) -> Array:
    """(batch, length, 1, half): each token's row of a cache."""
    rows = cache if places is None else cache[places]
    return rows[:, :, None]


def turned(xp: Any, tokens: Array, cos: Array, sin: Array, pairs: Pairs) -> Array:
    """A new array like `tokens` (batch, length, heads, size); computed in float32 at least."""
    wide = statistics_dtype(xp, tokens)
    a, b = (tokens[..., part].astype(wide, copy=False) for part in (pairs.first, pairs.second))
    result = xp.empty_like(tokens)
    result[..., pairs.first] = a * cos - b * sin
    result[..., pairs.second] = a * sin + b * cos
    result[..., pairs.turned :] = tokens[..., pairs.turned :]
    return result  # type: ignore[no-any-return]  # xp is Any
