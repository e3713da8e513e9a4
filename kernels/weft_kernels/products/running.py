"""Products along the first dimension, of all elements up to each one, and their gradient."""

from __future__ import annotations

from typing import Any

from weft_kernels.kernel import Array


def products_before(xp: Any, data: Array) -> Array:
    """For each row the product of those before it, 1 for the first; a new array."""
    result: Array = xp.ones(data.shape, dtype=data.dtype)
    if len(data) > 1:
        result[1:] = xp.cumprod(data[:-1], axis=0, dtype=data.dtype)
    return result


def running_gradient(xp: Any, gradient: Array, data: Array) -> Array:
    """The gradient of `data` by that of the products of rows up to each one, itself included.

    A row's slope is the product of those before it, times the sum over every later product of its gradient times what
    it has of the rows between: nothing is divided, so zeros do no harm. The sums follow from each other, back to front.
    """
    after: Array = gradient.copy()
    for row in range(len(data) - 2, -1, -1):
        after[row] += data[row + 1] * after[row + 1]
    return after * products_before(xp, data)
