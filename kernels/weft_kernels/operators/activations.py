"""Activation functions, element by element."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from weft_graph.ir import WEFT_DOMAIN
from weft_kernels.arguments import required
from weft_kernels.element_types import is_float
from weft_kernels.kernel import Array, Attributes, Inputs, KernelContext, Outputs, elementwise, kernel
from weft_kernels.operators.arithmetic import erf

# --- What activation functions and their gradients agree on -----------------------------------------------------------


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


@kernel("Relu")
def relu(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The positive part; NaN stays NaN."""
    (x,) = required(inputs)
    return (context.xp.maximum(x, x.dtype.type(0), out=context.out(0)),)


@kernel("ReluGrad", domain=WEFT_DOMAIN)
def relu_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The gradient where Relu's output is positive."""
    gradient, output = required(inputs)
    xp, made = context.xp, context.out(0)
    # Not a product: an infinite gradient, as of a root at 0, times 0 would be NaN.
    is_flat, zero = output <= 0, gradient.dtype.type(0)
    if xp is np:
        # All bits or none of them: NumPy chooses between elements ten times slower.
        made = np.empty_like(gradient) if made is None else made
        bits = f"i{gradient.dtype.itemsize}"
        kept = np.subtract(is_flat.view(np.int8), 1, dtype=bits)
        np.bitwise_and(gradient.view(bits), kept, out=made.view(bits))
        return (made,)
    if made is None:
        return (xp.where(is_flat, zero, gradient),)
    if made is not gradient:
        xp.copyto(made, gradient)
    xp.copyto(made, zero, where=is_flat)
    return (made,)


@elementwise("LeakyRelu")
def leaky_relu(xp: Any, x: Array, *, alpha: float) -> Any:
    """Y = X, where it is below 0 times `alpha`."""
    return xp.where(x < 0, x * x.dtype.type(alpha), x)


@kernel("PRelu")
def prelu(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """x, where it is below 0 times a slope of its own."""
    x, slope = required(inputs)
    return (context.xp.where(x < 0, x * slope, x),)


@elementwise("ThresholdedRelu")
def thresholded_relu(xp: Any, x: Array, *, alpha: float) -> Any:
    """Y = X where it is above `alpha`, 0 elsewhere."""
    return xp.where(x > alpha, x, x.dtype.type(0))


@elementwise("Shrink")
def shrink(xp: Any, x: Array, *, lambd: float, bias: float) -> Any:
    """x nearer to 0 where it is far from it, else 0; of integers the bias is cut to one."""
    # The type holds no float: what is above 2.5 is above 2, and a bias that is negative becomes a difference.
    given = x.dtype.type(abs(bias) if is_float(x.dtype) else int(abs(bias)))
    nearer, further = (x - given, x + given) if bias >= 0 else (x + given, x - given)
    return xp.where(x > lambd, nearer, xp.where(x < -lambd, further, x.dtype.type(0)))


@elementwise("Elu")
def elu(xp: Any, x: Array, *, alpha: float) -> Any:
    """Y = X, where it is below 0 `alpha` * (exp(X) - 1)."""
    return xp.where(x < 0, alpha * xp.expm1(xp.minimum(x, x.dtype.type(0))), x)


@elementwise("Celu")
def celu(xp: Any, x: Array, *, alpha: float) -> Any:
    """Y = X, where it is below 0 `alpha` * (exp(X / alpha) - 1)."""
    return xp.where(x < 0, alpha * xp.expm1(xp.minimum(x, x.dtype.type(0)) / x.dtype.type(alpha)), x)


@elementwise("Selu")
def selu(xp: Any, x: Array, *, alpha: float, gamma: float) -> Any:
    """Y = `gamma` * X, where it is not above 0 `gamma` * `alpha` * (exp(X) - 1)."""
    low = alpha * xp.expm1(xp.minimum(x, x.dtype.type(0)))
    return gamma * xp.where(x > 0, x, low)


@elementwise("Sigmoid")
def sigmoid(xp: Any, x: Array) -> Any:
    """The logistic function, without overflow on either side."""
    return logistic(xp, x)


@elementwise("SigmoidGrad", domain=WEFT_DOMAIN)
def sigmoid_grad(xp: Any, gradient: Array, output: Array) -> Any:
    """Gradient of the logistic function, from its output."""
    return gradient * (output * (1 - output))


@elementwise("HardSigmoid")
def hard_sigmoid(xp: Any, x: Array, *, alpha: float, beta: float) -> Any:
    """Y = `alpha` * X + `beta`, within 0 and 1."""
    line = x * x.dtype.type(alpha) + x.dtype.type(beta)
    return xp.clip(line, x.dtype.type(0), x.dtype.type(1))


@elementwise("HardSwish")
def hard_swish(xp: Any, x: Array) -> Any:
    """x where it is above 3, 0 below -3, and a parabola between."""
    return x * xp.clip(x / 6 + x.dtype.type(0.5), x.dtype.type(0), x.dtype.type(1))


@elementwise("HardSwishGrad", domain=WEFT_DOMAIN)
def hard_swish_grad(xp: Any, gradient: Array, x: Array) -> Any:
    """The slope of HardSwish, times the gradient."""
    slope = xp.where(x <= -3, x.dtype.type(0), xp.where(x >= 3, x.dtype.type(1), x / 3 + x.dtype.type(0.5)))
    return gradient * slope


@elementwise("Swish")
def swish(xp: Any, x: Array, *, alpha: float) -> Any:
    """x times the logistic function of a multiple of it."""
    return x * logistic(xp, x * x.dtype.type(alpha))


@elementwise("SwiGLU")
def swi_glu(xp: Any, gate: Array, value: Array, *, alpha: float) -> Any:
    """The swish of the gate, times the value."""
    return gate * logistic(xp, gate * gate.dtype.type(alpha)) * value


@elementwise("Gelu")
def gelu(xp: Any, x: Array, *, approximate: str) -> Any:
    """x times the share of a standard normal's numbers that are below x."""
    return x * normal_below(xp, x, approximate)


@elementwise("GeluGrad", domain=WEFT_DOMAIN)
def gelu_grad(xp: Any, gradient: Array, x: Array, *, approximate: str) -> Any:
    """The slope of Gelu, times the gradient."""
    below, density = normal_below(xp, x, approximate), normal_density(xp, x, approximate)
    return gradient * (below + x * density)


@elementwise("Mish")
def mish(xp: Any, x: Array) -> Any:
    """x * tanh(ln(exp(x) + 1)), without overflow."""
    return x * tanh_of_softplus(xp, x)


@elementwise("MishGrad", domain=WEFT_DOMAIN)
def mish_grad(xp: Any, gradient: Array, x: Array) -> Any:
    """The slope of Mish, times the gradient."""
    level = tanh_of_softplus(xp, x)
    decayed = xp.exp(-xp.abs(x))
    sigmoid = xp.where(x >= 0, x.dtype.type(1), decayed) / (1 + decayed)
    return gradient * (level + x * (1 - level * level) * sigmoid)


@elementwise("Softplus")
def softplus(xp: Any, x: Array) -> Any:
    """ln(exp(x) + 1), of whose two terms the larger one leads, so that nothing overflows."""
    return xp.maximum(x, x.dtype.type(0)) + xp.log1p(xp.exp(-xp.abs(x)))


@elementwise("Softsign")
def softsign(xp: Any, x: Array) -> Any:
    """Y = X / (1 + |X|)."""
    return x / (1 + xp.abs(x))
