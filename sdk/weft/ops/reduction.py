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


def reduce_max(
    x: Operand, axes: int | Sequence[int] | None = None, *, keepdims: bool = False, name: Name = None
) -> Expression:
    """The largest element over `axes`, over all where left out. Equals share the gradient."""
    return _reduced("ReduceMax", x, axes, keepdims, name)


def reduce_min(
    x: Operand, axes: int | Sequence[int] | None = None, *, keepdims: bool = False, name: Name = None
) -> Expression:
    """The smallest element over `axes`, over all where left out. Equals share the gradient."""
    return _reduced("ReduceMin", x, axes, keepdims, name)


def reduce_prod(
    x: Operand, axes: int | Sequence[int] | None = None, *, keepdims: bool = False, name: Name = None
) -> Expression:
    """The product over `axes`, over all where left out."""
    return _reduced("ReduceProd", x, axes, keepdims, name)


def reduce_l1(
    x: Operand, axes: int | Sequence[int] | None = None, *, keepdims: bool = False, name: Name = None
) -> Expression:
    """The sum of absolute values over `axes`, over all where left out."""
    return _reduced("ReduceL1", x, axes, keepdims, name)


def reduce_l2(
    x: Operand, axes: int | Sequence[int] | None = None, *, keepdims: bool = False, name: Name = None
) -> Expression:
    """The square root of the sum of squares over `axes`, over all where left out."""
    return _reduced("ReduceL2", x, axes, keepdims, name)


def reduce_sum_square(
    x: Operand, axes: int | Sequence[int] | None = None, *, keepdims: bool = False, name: Name = None
) -> Expression:
    """The sum of squares over `axes`, over all where left out."""
    return _reduced("ReduceSumSquare", x, axes, keepdims, name)


def reduce_log_sum_exp(
    x: Operand, axes: int | Sequence[int] | None = None, *, keepdims: bool = False, name: Name = None
) -> Expression:
    """log(sum(exp(x))) over `axes`, over all where left out, without overflow."""
    return _reduced("ReduceLogSumExp", x, axes, keepdims, name)


def cum_sum(
    x: Operand, axis: int = 0, *, exclusive: bool = False, reverse: bool = False, name: Name = None
) -> Expression:
    """The sum of all elements up to each one along `axis`, or before it, or from the end."""
    return one("CumSum", x, np.asarray(axis, np.int64), exclusive=int(exclusive), reverse=int(reverse), name=name)


def argmin(x: Operand, axis: int = 0, *, keepdims: bool = False, name: Name = None) -> Expression:
    """The int64 index of the smallest element along `axis`, the first where several are."""
    return one("ArgMin", x, axis=axis, keepdims=int(keepdims), name=name)


def argmax(x: Operand, axis: int = 0, *, keepdims: bool = False, name: Name = None) -> Expression:
    """The int64 index of the largest element along `axis`, the first where several are."""
    return one("ArgMax", x, axis=axis, keepdims=int(keepdims), name=name)


def _reduced(op_type: str, x: Operand, axes: int | Sequence[int] | None, keepdims: bool, name: Name) -> Expression:
    listed = None if axes is None else np.atleast_1d(np.asarray(axes, np.int64))
    return one(op_type, x, listed, keepdims=int(keepdims), name=name)
