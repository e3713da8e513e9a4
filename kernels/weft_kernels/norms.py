"""The p-norm in parts: the power that is summed, the root of the sum, and the slopes of both."""

from __future__ import annotations

from typing import Any

from weft_kernels.kernel import Array


def powered(xp: Any, data: Array, p: int) -> Array:
    """|data| ** p."""
    if p == 2:
        return xp.square(data)  # type: ignore[no-any-return]  # xp is Any
    return xp.abs(data) if p == 1 else xp.abs(data) ** p  # type: ignore[no-any-return]  # xp is Any


def root(xp: Any, total: Array, p: int) -> Array:
    """The p-th root of a sum of powers."""
    if p == 2:
        return xp.sqrt(total)  # type: ignore[no-any-return]  # xp is Any
    return total if p == 1 else total ** (1 / p)


def norm_slope(xp: Any, data: Array, p: int) -> Array:
    """sign(data) * |data| ** (p - 1): times `norm_share`, the derivative of the norm by each element."""
    if p == 2:
        return data
    sign: Array = xp.sign(data)
    return sign if p == 1 else sign * xp.abs(data) ** (p - 1)


def norm_share(xp: Any, gradient: Array, norm: Array, p: int) -> Array:
    """gradient / norm ** (p - 1), 0 where the norm is 0."""
    if p == 1:
        return gradient
    is_zero = norm == 0
    return xp.where(is_zero, 0, gradient / xp.where(is_zero, 1, norm) ** (p - 1))  # type: ignore[no-any-return]
