"""Operators that make one number of many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.expression import Expression, Operand
from weft.ops.generic import Name, one


def reduce_mean(
    x: Operand, axes: int | Sequence[int] | None = None, *, keepdims: bool = False, name: Name = None
) -> Expression:
    """The mean over `axes`, over all where left out. `keepdims` keeps them with length 1."""
    listed = [axes] if isinstance(axes, int) else axes
    return one("ReduceMean", x, axes=listed, keepdims=int(keepdims), name=name)


def reduce_sum(
    x: Operand, axes: int | Sequence[int] | None = None, *, keepdims: bool = False, name: Name = None
) -> Expression:
    """The sum over `axes`, over all where left out. `keepdims` keeps them with length 1."""
    listed = None if axes is None else np.atleast_1d(np.asarray(axes, np.int64))
    return one("ReduceSum", x, listed, keepdims=int(keepdims), name=name)


def argmax(x: Operand, axis: int = 0, *, keepdims: bool = False, name: Name = None) -> Expression:
    """The int64 index of the largest element along `axis`, the first where several are."""
    return one("ArgMax", x, axis=axis, keepdims=int(keepdims), name=name)
