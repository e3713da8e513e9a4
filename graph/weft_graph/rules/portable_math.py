"""Functions of numbers that give the same bits on every machine.

C libraries round `pow` and `cos` in their last bit as they like. What several processes work out for themselves and
multiply their weights with must not depend on that: here are IEEE's four exact operations and `decimal` alone.
"""

from __future__ import annotations

import math
from decimal import Context
from typing import Final

_DIGITS: Final = Context(prec=28, traps=[])
"""Many more than a float's 17 digits, so that the last rounding decides alone; what is too large is infinite."""

_HALF_PI: Final = 1.5707963267948966
_TERMS: Final = 10
"""Of Taylor's series for angles up to a quarter of pi: the next one is below 1e-20."""

_COSINE: Final = tuple((-1) ** n / math.factorial(2 * n) for n in reversed(range(_TERMS)))
_SINE: Final = tuple((-1) ** n / math.factorial(2 * n + 1) for n in reversed(range(_TERMS)))


def power(base: float, exponent: float) -> float:
    """base ** exponent for a base of 0 or more: infinite where it is too large, 1 for an exponent of 0."""
    if exponent == 0:
        return 1.0
    return float(_DIGITS.power(_DIGITS.create_decimal(base), _DIGITS.create_decimal(exponent)))


def half_cosine(share: float) -> float:
    """(1 + cos(pi * share)) / 2 for a share from 0 to 1: from 1 down to 0, both met exactly."""
    if share <= 0.5:
        angle = share * _HALF_PI
        root = _horner(_COSINE, angle * angle)
    else:
        angle = (1.0 - share) * _HALF_PI
        root = angle * _horner(_SINE, angle * angle)
    return root * root


def _horner(coefficients: tuple[float, ...], x: float) -> float:
    value = 0.0
    for coefficient in coefficients:
        value = value * x + coefficient
    return value
