"""Operators that arrange elements in another way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.expression import Expression, Operand
from weft.ops.generic import Name, one


def flatten(x: Operand, axis: int = 1, *, name: Name = None) -> Expression:
    """A matrix: the dimensions before `axis` joined, and those from it on."""
    return one("Flatten", x, axis=axis, name=name)


def reshape(x: Operand, shape: Sequence[int] | Expression, *, name: Name = None) -> Expression:
    """The same elements in another shape. 0 keeps the dimension of that place, one -1 takes what is left.

    `("batch", 8, 8)` is `[0, 8, 8]` here: the batch keeps its place.
    """
    return one("Reshape", x, shape if isinstance(shape, Expression) else _int64(shape), name=name)


def transpose(x: Operand, perm: Sequence[int] | None = None, *, name: Name = None) -> Expression:
    """Dimension i of the result is dimension `perm[i]` of x; the order is reversed where `perm` is left out."""
    return one("Transpose", x, perm=perm, name=name)


def concat(inputs: Sequence[Operand], axis: int, *, name: Name = None) -> Expression:
    """The inputs one after another along `axis`; their other dimensions are alike."""
    return one("Concat", *inputs, axis=axis, name=name)


def squeeze(x: Operand, axes: int | Sequence[int] | None = None, *, name: Name = None) -> Expression:
    """x without the dimensions `axes`, which have length 1; without all such where left out."""
    return one("Squeeze", x, None if axes is None else _int64(axes), name=name)


def unsqueeze(x: Operand, axes: int | Sequence[int], *, name: Name = None) -> Expression:
    """x with dimensions of length 1 at the places `axes` of the result."""
    return one("Unsqueeze", x, _int64(axes), name=name)


def _int64(values: int | Sequence[int]) -> np.ndarray:
    return np.atleast_1d(np.asarray(values, dtype=np.int64))
