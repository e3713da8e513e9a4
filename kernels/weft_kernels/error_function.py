"""The error function over arrays, to the precision of their element type.

Below 1 it is its power series, 2 / sqrt(pi) * sum of (-1)^n x^(2n + 1) / (n! (2n + 1)) (Abramowitz and Stegun, 7.1.5).
From 1 on it is 1 - exp(-x^2) times a smooth function of 1 / x, which a Chebyshev interpolation of Python's own
`math.erfc` stands for. From 6 on it is 1 in every element type.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Final

import numpy as np

from weft_kernels.kernel import Array

_ONE_FROM: Final = 6.0
_TERMS: Final = {"float64": (19, 26), "float32": (10, 11), "float16": (10, 11)}
"""Terms of the series, and of the interpolation, that an element type needs."""


def erf(xp: Any, x: Array) -> Array:
    """The error function of each element, a new array of its type; float16 is computed in float32."""
    wide = x.astype(xp.promote_types(x.dtype, xp.float32), copy=False)
    series, chebyshev = _coefficients(wide.dtype.name)
    size = xp.abs(wide)
    near = _polynomial(xp, series, xp.square(xp.minimum(size, wide.dtype.type(1)))) * wide
    large = xp.clip(size, wide.dtype.type(1), wide.dtype.type(_ONE_FROM))
    # The interpolation's variable runs from 1 at x = 1 to -1 at x = 6.
    place = (2 / large - (1 + 1 / _ONE_FROM)) / (1 - 1 / _ONE_FROM)
    far = 1 - xp.exp(-xp.square(large)) * _polynomial(xp, chebyshev, place.astype(wide.dtype, copy=False))
    result: Array = xp.where(size < 1, near, xp.copysign(far, wide))
    return result.astype(x.dtype, copy=False)


def _polynomial(xp: Any, coefficients: tuple[float, ...], x: Array) -> Array:
    """The polynomial by Horner's rule, the highest power's coefficient last."""
    result = xp.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        result *= x
        result += coefficient
    return result  # type: ignore[no-any-return]  # xp is Any


@cache
def _coefficients(dtype: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(the series in x^2, the interpolation of exp(x^2) erfc(x) in its variable, as powers)."""
    terms, degree = _TERMS[dtype]
    series = tuple(2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(terms))

    places = np.polynomial.chebyshev.chebpts1(degree + 1)
    sizes = 2 / (places * (1 - 1 / _ONE_FROM) + (1 + 1 / _ONE_FROM))
    scaled = [math.exp(size * size) * math.erfc(size) for size in sizes.tolist()]
    powers = np.polynomial.chebyshev.cheb2poly(np.polynomial.chebyshev.chebfit(places, scaled, degree))
    return series, tuple(powers.tolist())
