"""Trigonometric and hyperbolic functions, element by element."""

from __future__ import annotations

from typing import Any

from weft_graph.ir import WEFT_DOMAIN
from weft_kernels.kernel import Array, elementwise, function

sin = function("Sin", "sin")
"""Y = sin(X), X in radians."""


cos = function("Cos", "cos")
"""Y = cos(X), X in radians."""


tan = function("Tan", "tan")
"""Y = tan(X), X in radians."""


asin = function("Asin", "arcsin")
"""Y = arcsin(X); NaN outside [-1, 1]."""


acos = function("Acos", "arccos")
"""Y = arccos(X); NaN outside [-1, 1]."""


atan = function("Atan", "arctan")
"""Y = arctan(X)."""


sinh = function("Sinh", "sinh")
"""Y = sinh(X)."""


cosh = function("Cosh", "cosh")
"""Y = cosh(X)."""


tanh = function("Tanh", "tanh")
"""The hyperbolic tangent."""


@elementwise("TanhGrad", domain=WEFT_DOMAIN)
def tanh_grad(xp: Any, gradient: Array, output: Array) -> Any:
    """Gradient of the hyperbolic tangent, from its output."""
    return gradient * (1 - output * output)


asinh = function("Asinh", "arcsinh")
"""Y = arsinh(X)."""


acosh = function("Acosh", "arccosh")
"""Y = arcosh(X); NaN below 1."""


atanh = function("Atanh", "arctanh")
"""Y = artanh(X); NaN outside [-1, 1]."""
