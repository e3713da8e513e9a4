"""First values of parameters: any run of a key's elements, the same however the key is cut.

Element i has draws 2i and 2i + 1 of the key's stream, whatever its initializer. `RandomUniform` uses the first:
low + (high - low) * u. `RandomNormal` uses both: Box and Muller, "A note on the generation of random normal deviates",
1958, with the logarithm of 1 - u, which is never zero. All arithmetic is float64 and rounded once to the key's type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from weft_graph.ir import Initializer
from weft_kernels.blocks import CACHE_ELEMENTS, VECTOR_BLOCK, whole_blocks
from weft_kernels.kernel import Array
from weft_kernels.random import Key, as_uniform, block_draws, draws, first_value_key

DRAWS_PER_ELEMENT: Final = 2


def first_values(
    initializer: Initializer, *, seed: int, key: str, start: int, stop: int, dtype: np.dtype[Any] | str
) -> Array:
    """Elements `start` to `stop` of the key's first value (stop - start,), of `dtype`; the caller owns the array.

    Raises ValueError, naming the key, for an initializer that there is not or an attribute that it lacks.
    """
    if not 0 <= start <= stop:
        raise ValueError(f"key {key!r}: there are no elements {start} to {stop}")
    fill = _fill_of(initializer, key)
    if fill is None:
        return np.full(stop - start, initializer.attributes.get("value", 0.0), dtype=dtype)
    return _filled(fill, first_value_key(seed, key), start, stop, np.dtype(dtype))


def first_rows(
    initializer: Initializer, *, seed: int, key: str, rows: Array, width: int, dtype: np.dtype[Any] | str
) -> Array:
    """Rows (n) int64, of `width` elements each, of the key's first value, (n, width) of `dtype`: the same elements that
    `first_values` gives, for rows that lie anywhere and in one go. Raises ValueError as `first_values` does.
    """
    fill = _fill_of(initializer, key)
    values = np.empty((len(rows), width), dtype)
    if fill is None:
        values.fill(initializer.attributes.get("value", 0.0))
        return values
    stream = first_value_key(seed, key)
    piece = max(CACHE_ELEMENTS // max(width, 1), 1)
    for begin in range(0, len(rows) if width else 0, piece):
        some = rows[begin : begin + piece].astype(np.uint64)
        values[begin : begin + piece] = _filled_rows(fill, stream, some, width)
    return values


_Fill = Callable[[Array, Array], Array]
"""The float64 values of elements whose two uniform numbers are given."""


def _fill_of(initializer: Initializer, key: str) -> _Fill | None:
    """What makes the values; None for a constant."""
    numbers = dict(initializer.attributes)
    if initializer.op_type == "ConstantOfShape":
        return None
    try:
        return _RANDOM[initializer.op_type](numbers)
    except KeyError as error:
        known = ", ".join(["ConstantOfShape", *_RANDOM])
        raise ValueError(
            f"key {key!r}: initializer {initializer.op_type!r} with attributes {numbers} is not one of {known}, "
            f"or lacks {error}"
        ) from None


def _filled_rows(fill: _Fill, key: Key, rows: Array, width: int) -> Array:
    """A block of draws makes two elements, so a row of odd width may begin in the middle of one."""
    first = rows * np.uint64(width)
    blocks = (first // np.uint64(2))[:, None] + np.arange(width // 2 + 1 if width % 2 else width // 2, dtype=np.uint64)
    raw = block_draws(key, blocks.reshape(-1)).reshape(len(rows), -1, DRAWS_PER_ELEMENT)
    if width % 2:
        odd = (first % np.uint64(2)).astype(np.intp)
        raw = np.take_along_axis(raw, (odd[:, None] + np.arange(width))[:, :, None], axis=1)
    size = len(rows) * width
    # Whole blocks, as when a run is filled; what fills the last one up is used for nothing.
    uniform = np.zeros((whole_blocks(size), DRAWS_PER_ELEMENT))
    uniform[:size] = as_uniform(raw.reshape(size, DRAWS_PER_ELEMENT))
    made: Array = fill(uniform[:, 0].copy(), uniform[:, 1].copy())[:size]
    return made.reshape(len(rows), width)


def _filled(fill: _Fill, key: Key, start: int, stop: int, dtype: np.dtype[Any]) -> Array:
    values = np.empty(stop - start, dtype=dtype)
    for low in range(start // VECTOR_BLOCK * VECTOR_BLOCK, stop, CACHE_ELEMENTS):
        count = min(CACHE_ELEMENTS, whole_blocks(stop - low))
        uniform = as_uniform(draws(key, low * DRAWS_PER_ELEMENT, count * DRAWS_PER_ELEMENT))
        made = fill(uniform[0::2].copy(), uniform[1::2].copy())
        first, last = max(start, low), min(stop, low + count)
        values[first - start : last - start] = made[first - low : last - low]
    return values


def _uniform(numbers: Mapping[str, float]) -> _Fill:
    low, high = numbers["low"], numbers["high"]

    def fill(first: Array, _second: Array) -> Array:
        return low + (high - low) * first

    return fill


def _normal(numbers: Mapping[str, float]) -> _Fill:
    mean, scale = numbers["mean"], numbers["scale"]

    def fill(first: Array, second: Array) -> Array:
        radius = np.sqrt(-2.0 * np.log1p(-first))
        return mean + scale * (radius * np.cos(2.0 * np.pi * second))

    return fill


_RANDOM: Final[Mapping[str, Callable[[Mapping[str, float]], _Fill]]] = {
    "RandomUniform": _uniform,
    "RandomNormal": _normal,
}
