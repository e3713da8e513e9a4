"""The cubic of Keys 1981 through four elements: its weight at a distance, and the slope of that."""

from __future__ import annotations

from typing import Any

from weft_kernels.kernel import Array


def cubic_weight(xp: Any, distance: Array, a: float) -> Array:
    """The weight of an element at `distance`, on either side; 0 from 2 on. `a` is the slope at 1."""
    t = xp.abs(distance)
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return xp.where(t <= 1, near, xp.where(t < 2, far, 0))  # type: ignore[no-any-return]  # xp is Any


def cubic_slope(xp: Any, distance: Array, a: float) -> Array:
    """The derivative of `cubic_weight` by `distance`."""
    t = xp.abs(distance)
    near = (3 * (a + 2) * t - 2 * (a + 3)) * t
    far = (3 * a * t - 10 * a) * t + 8 * a
    return xp.sign(distance) * xp.where(t <= 1, near, xp.where(t < 2, far, 0))  # type: ignore[no-any-return]
