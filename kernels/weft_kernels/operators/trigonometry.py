"""Trigonometric and hyperbolic functions, element by element."""

from __future__ import annotations

from weft_graph.ir import WEFT_DOMAIN
from weft_kernels.arguments import required
from weft_kernels.kernel import Attributes, Inputs, KernelContext, Outputs, kernel


@kernel("Sin")
def sin(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Y = sin(X), X in radians."""
    (x,) = required(inputs)
    return (context.xp.sin(x, out=context.out(0)),)


@kernel("Cos")
def cos(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Y = cos(X), X in radians."""
    (x,) = required(inputs)
    return (context.xp.cos(x, out=context.out(0)),)


@kernel("Tan")
def tan(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Y = tan(X), X in radians."""
    (x,) = required(inputs)
    return (context.xp.tan(x, out=context.out(0)),)


@kernel("Asin")
def asin(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Y = arcsin(X); NaN outside [-1, 1]."""
    (x,) = required(inputs)
    return (context.xp.arcsin(x, out=context.out(0)),)


@kernel("Acos")
def acos(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Y = arccos(X); NaN outside [-1, 1]."""
    (x,) = required(inputs)
    return (context.xp.arccos(x, out=context.out(0)),)


@kernel("Atan")
def atan(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Y = arctan(X)."""
    (x,) = required(inputs)
    return (context.xp.arctan(x, out=context.out(0)),)


@kernel("Sinh")
def sinh(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Y = sinh(X)."""
    (x,) = required(inputs)
    return (context.xp.sinh(x, out=context.out(0)),)


@kernel("Cosh")
def cosh(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Y = cosh(X)."""
    (x,) = required(inputs)
    return (context.xp.cosh(x, out=context.out(0)),)


@kernel("Tanh")
def tanh(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The hyperbolic tangent."""
    (x,) = required(inputs)
    return (context.xp.tanh(x, out=context.out(0)),)


@kernel("TanhGrad", domain=WEFT_DOMAIN, in_float32=("float16", "bfloat16"))
def tanh_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradient of the hyperbolic tangent, from its output."""
    gradient, output = required(inputs)
    return (gradient * (1 - output * output),)


@kernel("Asinh")
def asinh(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Y = arsinh(X)."""
    (x,) = required(inputs)
    return (context.xp.arcsinh(x, out=context.out(0)),)


@kernel("Acosh")
def acosh(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Y = arcosh(X); NaN below 1."""
    (x,) = required(inputs)
    return (context.xp.arccosh(x, out=context.out(0)),)


@kernel("Atanh")
def atanh(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Y = artanh(X); NaN outside [-1, 1]."""
    (x,) = required(inputs)
    return (context.xp.arctanh(x, out=context.out(0)),)
