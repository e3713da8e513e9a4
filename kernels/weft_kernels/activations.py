"""What activation functions and their gradients agree on."""

from __future__ import annotations

import math
from typing import Any, Final

from weft_kernels.error_function import erf
from weft_kernels.kernel import Array

_LINEAR: Final = math.sqrt(2 / math.pi)
_CUBIC: Final = 0.044715
"""Hendrycks and Gimpel, "Gaussian error linear units", 2016: P is (1 + tanh(linear * (x + cubic * x^3))) / 2."""


def normal_below(xp: Any, x: Array, approximate: str) -> Array:
    """The share of a standard normal's numbers that are below x, or the tanh that stands for it."""
    if approximate == "tanh":
        return (xp.tanh(_LINEAR * (x + _CUBIC * (x * x * x))) + 1) * 0.5  # type: ignore[no-any-return]  # xp is Any
    return (erf(xp, x * math.sqrt(0.5)) + 1) * 0.5


def normal_density(xp: Any, x: Array, approximate: str) -> Array:
    """The slope of `normal_below` at x."""
    if approximate == "tanh":
        level = xp.tanh(_LINEAR * (x + _CUBIC * (x * x * x)))
        inner = _LINEAR * (1 + 3 * _CUBIC * (x * x))
        return (1 - level * level) * inner * 0.5  # type: ignore[no-any-return]  # xp is Any
    return xp.exp(x * x * -0.5) * math.sqrt(0.5 / math.pi)  # type: ignore[no-any-return]  # xp is Any


def tanh_of_softplus(xp: Any, x: Array) -> Array:
    """tanh(ln(exp(x) + 1)) without overflow: with e = exp(-|x|) it is a quotient of polynomials in e."""
    decayed = xp.exp(-xp.abs(x))
    square = decayed * decayed
    positive = (1 + 2 * decayed) / (1 + 2 * decayed + 2 * square)
    negative = (square + 2 * decayed) / (square + 2 * decayed + 2)
    return xp.where(x >= 0, positive, negative)  # type: ignore[no-any-return]  # xp is Any


def logistic(xp: Any, x: Array) -> Array:
    """1 / (1 + exp(-x)) without overflow: with e = exp(-|x|) it is 1 / (1 + e) for x >= 0, and e / (1 + e) below."""
    decayed = xp.exp(-xp.abs(x))
    return xp.where(x >= 0, x.dtype.type(1), decayed) / (1 + decayed)  # type: ignore[no-any-return]  # xp is Any
