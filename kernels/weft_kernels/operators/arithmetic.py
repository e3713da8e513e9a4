"""Arithmetic, element by element: sums, products, powers, roots, rounding, bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, reduce
from typing import Any, Final

import numpy as np

from weft_graph.attributes import as_float, as_int
from weft_graph.ir import WEFT_DOMAIN
from weft_kernels.arguments import optional, required
from weft_kernels.element_types import computed_in, is_float
from weft_kernels.kernel import Array, Attributes, Inputs, KernelContext, Outputs, function, kernel

# --- The error function over arrays, to the precision of their element type -------------------------------------------
# Below 1 it is its power series, 2 / sqrt(pi) * sum of (-1)^n x^(2n + 1) / (n! (2n + 1)) (Abramowitz and Stegun,
# 7.1.5). From 1 on it is 1 - exp(-x^2) times a smooth function of 1 / x, which a Chebyshev interpolation of Python's
# own `math.erfc` stands for. From 6 on it is 1 in every element type.


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


add = function("Add", "add")
"""Sum of two broadcast arrays."""


sub = function("Sub", "subtract")
"""Difference of two broadcast arrays."""


mul = function("Mul", "multiply")
"""Product of two broadcast arrays."""


@kernel("Div")
def div(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Quotient of two broadcast arrays; integers are divided towards zero, as in C."""
    xp = context.xp
    dividend, divisor = required(inputs)
    if is_float(dividend.dtype):
        return (xp.divide(dividend, divisor, out=context.out(0)),)
    quotient = xp.floor_divide(dividend, divisor)
    if dividend.dtype.kind == "i":
        # floor_divide rounds down: one too low where the signs differ and something is left over.
        inexact = xp.multiply(quotient, divisor) != dividend
        quotient = quotient + (inexact & ((dividend < 0) != (divisor < 0)))
    return (quotient.astype(dividend.dtype, copy=False),)


@kernel("Mod")
def mod(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """What is left of a division, of the divisor's sign or the dividend's."""
    dividend, divisor = required(inputs)
    rest = context.xp.fmod if as_int(attributes["fmod"]) else context.xp.remainder
    return (rest(dividend, divisor).astype(dividend.dtype, copy=False),)


neg = function("Neg", "negative")
"""The negative."""


abs_ = function("Abs", "abs")
"""Y = |X|."""


sign = function("Sign", "sign")
"""Y = -1, 0 or 1, as the sign of X is; NaN stays."""


reciprocal = function("Reciprocal", "reciprocal")
"""Y = 1 / X."""


sqrt = function("Sqrt", "sqrt")
"""The square root."""


@kernel("Pow")
def pow_(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Powers of two broadcast arrays, of the base's element type."""
    xp = context.xp
    base, exponent = required(inputs)
    if is_float(base.dtype):
        # The exponent takes the base's type first: an int64 one would make NumPy compute a float32 power in float64.
        wide = computed_in(base.dtype)
        result = xp.power(base.astype(wide, copy=False), exponent.astype(wide, copy=False))
        return (result.astype(base.dtype, copy=False),)
    if is_float(exponent.dtype):
        return (xp.power(base.astype(xp.float64), exponent).astype(base.dtype),)
    # There is no integer to a negative integer power. A device is not asked whether there is such an exponent.
    negative = exponent < 0
    if exponent.size and xp is np and not negative.any():
        return (xp.power(base, exponent).astype(base.dtype, copy=False),)
    result = xp.power(base, xp.maximum(exponent, 0)).astype(base.dtype, copy=False)
    return (xp.where(negative, xp.power(base.astype(xp.float64), exponent).astype(base.dtype), result),)


@kernel("PowBaseGrad", domain=WEFT_DOMAIN)
def pow_base_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradient of the base of a power."""
    xp = context.xp
    gradient, base, exponent = required(inputs)
    narrow, wide = base.dtype, computed_in(base.dtype)
    base, exponent = base.astype(wide, copy=False), exponent.astype(wide, copy=False)
    # Where the exponent is 0 the power is 1 everywhere: no slope, although base^-1 may be infinite.
    lower = xp.where(exponent == 0, base.dtype.type(1), exponent - 1)
    return ((gradient * (exponent * xp.power(base, lower))).astype(narrow, copy=False),)


@kernel("PowExponentGrad", domain=WEFT_DOMAIN)
def pow_exponent_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradient of the exponent of a power."""
    xp = context.xp
    gradient, base, exponent, output = required(inputs)
    base = base.astype(computed_in(base.dtype), copy=False)
    logarithm = xp.log(xp.where(base == 0, base.dtype.type(1), base))
    return ((gradient * (output * logarithm)).astype(exponent.dtype, copy=False),)


exp = function("Exp", "exp")
"""The exponential."""


log = function("Log", "log")
"""The natural logarithm."""


@kernel("Erf")
def erf_(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The error function."""
    (x,) = required(inputs)
    return (erf(context.xp, x),)


ceil = function("Ceil", "ceil")
"""Y = the smallest whole number that is not below X."""


floor = function("Floor", "floor")
"""Y = the largest whole number that is not above X."""


round_ = function("Round", "rint")
"""Y = the whole number nearest to X; of two, the even one."""


@kernel("Clip")
def clip(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """x, not below one bound, then not above the other."""
    xp = context.xp
    (x,) = required(inputs, 1)
    for index, name, limit in ((1, "min", xp.maximum), (2, "max", xp.minimum)):
        bound = optional(inputs, index)
        if bound is not None:
            x = limit(x, bound)
        elif name in attributes:
            x = limit(x, x.dtype.type(as_float(attributes[name])))
    return (x,)


def _over(context: KernelContext, function: Callable[..., Array], arrays: Sequence[Array]) -> Array:
    """What a function of two arrays makes of several, from the left."""
    *first, last = arrays
    return function(reduce(function, first), last, out=context.out(0)) if first else last


@kernel("Max")
def max_(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The largest of all inputs, element by element."""
    return (_over(context, context.xp.maximum, required(inputs)),)


@kernel("Min")
def min_(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The smallest of all inputs, element by element."""
    return (_over(context, context.xp.minimum, required(inputs)),)


@kernel("Sum", in_float32=("float16", "bfloat16"))
def sum_(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The sum of all inputs, element by element, in their order."""
    return (_over(context, context.xp.add, required(inputs)),)


@kernel("Mean", in_float32=("float16", "bfloat16"))
def mean(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The mean of all inputs, element by element."""
    arrays = required(inputs)
    return (reduce(context.xp.add, arrays) / len(arrays),)


@kernel("IsInf")
def is_inf(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Whether it is infinite, of the signs that are asked for."""
    xp = context.xp
    (x,) = required(inputs)
    negative, positive = bool(as_int(attributes["detect_negative"])), bool(as_int(attributes["detect_positive"]))
    return (xp.isinf(x) & xp.where(x > 0, positive, negative),)


is_nan = function("IsNaN", "isnan")
"""Whether it is not a number."""
