"""Trigonometric and hyperbolic functions, element by element."""

from __future__ import annotations

from weft_graph.ir import WEFT_DOMAIN
from weft_kernels.arguments import required
from weft_kernels.kernel import Attributes, Inputs, KernelContext, Outputs, function, kernel

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


@kernel("TanhGrad", domain=WEFT_DOMAIN, in_float32=("float16", "bfloat16"))
def tanh_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradient of the hyperbolic tangent, from its output."""
    gradient, output = required(inputs)
    return (gradient * (1 - output * output),)


asinh = function("Asinh", "arcsinh")
"""Y = arsinh(X)."""


acosh = function("Acosh", "arccosh")
"""Y = arcosh(X); NaN below 1."""


atanh = function("Atanh", "arctanh")
"""Y = artanh(X); NaN outside [-1, 1]."""
