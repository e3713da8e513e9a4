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
from weft_kernels.kernel import Array
from weft_kernels.random import Key, as_uniform, draws, first_value_key

DRAWS_PER_ELEMENT: Final = 2
_CHUNK: Final = 1 << 14
"""Elements computed at once: what fits a core's cache."""
_BLOCK: Final = 64
"""Elements are computed in whole blocks. A vectorised logarithm may differ in its last bit between the body and the
tail of an array, and an element's place in a block does not depend on how the key is cut."""


def first_values(
    initializer: Initializer, *, seed: int, key: str, start: int, stop: int, dtype: np.dtype[Any] | str
) -> Array:
    """Elements `start` to `stop` of the key's first value (stop - start,), of `dtype`; the caller owns the array.

    Raises ValueError, naming the key, for an initializer that there is not or an attribute that it lacks.
    """
    if not 0 <= start <= stop:
        raise ValueError(f"key {key!r}: there are no elements {start} to {stop}")
    numbers = dict(initializer.attributes)
    try:
        if initializer.op_type == "ConstantOfShape":
            return np.full(stop - start, numbers.get("value", 0.0), dtype=dtype)
        make = _RANDOM[initializer.op_type]
        fill = make(numbers)
    except KeyError as error:
        known = ", ".join(["ConstantOfShape", *_RANDOM])
        raise ValueError(
            f"key {key!r}: initializer {initializer.op_type!r} with attributes {numbers} is not one of {known}, "
            f"or lacks {error}"
        ) from None
    return _filled(fill, first_value_key(seed, key), start, stop, np.dtype(dtype))


_Fill = Callable[[Array, Array], Array]
"""The float64 values of elements whose two uniform numbers are given."""


def _filled(fill: _Fill, key: Key, start: int, stop: int, dtype: np.dtype[Any]) -> Array:
    values = np.empty(stop - start, dtype=dtype)
    for low in range(start // _BLOCK * _BLOCK, stop, _CHUNK):
        count = min(_CHUNK, -(-(stop - low) // _BLOCK) * _BLOCK)
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
