"""Activation functions, element by element."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from weft_graph.attributes import as_float, as_str
from weft_graph.ir import WEFT_DOMAIN
from weft_kernels.arguments import required
from weft_kernels.element_types import is_float
from weft_kernels.kernel import Array, Attributes, Inputs, KernelContext, Outputs, kernel
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


@kernel("LeakyRelu", in_float32=("float16", "bfloat16"))
def leaky_relu(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Y = X, where it is below 0 times `alpha`."""
    xp = context.xp
    (x,) = required(inputs)
    alpha = as_float(attributes["alpha"])
    return (xp.where(x < 0, x * x.dtype.type(alpha), x),)


@kernel("PRelu")
def prelu(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """x, where it is below 0 times a slope of its own."""
    x, slope = required(inputs)
    return (context.xp.where(x < 0, x * slope, x),)


@kernel("ThresholdedRelu", in_float32=("float16", "bfloat16"))
def thresholded_relu(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Y = X where it is above `alpha`, 0 elsewhere."""
    xp = context.xp
    (x,) = required(inputs)
    alpha = as_float(attributes["alpha"])
    return (xp.where(x > alpha, x, x.dtype.type(0)),)


@kernel("Shrink", in_float32=("float16", "bfloat16"))
def shrink(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """x nearer to 0 where it is far from it, else 0; of integers the bias is cut to one."""
    xp = context.xp
    (x,) = required(inputs)
    limit, bias = as_float(attributes["lambd"]), as_float(attributes["bias"])
    # The type holds no float: what is above 2.5 is above 2, and a bias that is negative becomes a difference.
    given = x.dtype.type(abs(bias) if is_float(x.dtype) else int(abs(bias)))
    nearer, further = (x - given, x + given) if bias >= 0 else (x + given, x - given)
    return (xp.where(x > limit, nearer, xp.where(x < -limit, further, x.dtype.type(0))),)


@kernel("Elu", in_float32=("float16", "bfloat16"))
def elu(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Y = X, where it is below 0 `alpha` * (exp(X) - 1)."""
    xp = context.xp
    (x,) = required(inputs)
    alpha = as_float(attributes["alpha"])
    return (xp.where(x < 0, alpha * xp.expm1(xp.minimum(x, x.dtype.type(0))), x),)


@kernel("Celu", in_float32=("float16", "bfloat16"))
def celu(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Y = X, where it is below 0 `alpha` * (exp(X / alpha) - 1)."""
    xp = context.xp
    (x,) = required(inputs)
    alpha = as_float(attributes["alpha"])
    return (xp.where(x < 0, alpha * xp.expm1(xp.minimum(x, x.dtype.type(0)) / x.dtype.type(alpha)), x),)


@kernel("Selu", in_float32=("float16", "bfloat16"))
def selu(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Y = `gamma` * X, where it is not above 0 `gamma` * `alpha` * (exp(X) - 1)."""
    xp = context.xp
    (x,) = required(inputs)
    alpha, gamma = as_float(attributes["alpha"]), as_float(attributes["gamma"])
    low = alpha * xp.expm1(xp.minimum(x, x.dtype.type(0)))
    return (gamma * xp.where(x > 0, x, low),)


@kernel("Sigmoid", in_float32=("float16", "bfloat16"))
def sigmoid(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The logistic function, without overflow on either side."""
    (x,) = required(inputs)
    return (logistic(context.xp, x),)


@kernel("SigmoidGrad", domain=WEFT_DOMAIN, in_float32=("float16", "bfloat16"))
def sigmoid_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradient of the logistic function, from its output."""
    gradient, output = required(inputs)
    return (gradient * (output * (1 - output)),)


@kernel("HardSigmoid", in_float32=("float16", "bfloat16"))
def hard_sigmoid(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Y = `alpha` * X + `beta`, within 0 and 1."""
    xp = context.xp
    (x,) = required(inputs)
    alpha, beta = as_float(attributes["alpha"]), as_float(attributes["beta"])
    line = x * x.dtype.type(alpha) + x.dtype.type(beta)
    return (xp.clip(line, x.dtype.type(0), x.dtype.type(1)),)


@kernel("HardSwish", in_float32=("float16", "bfloat16"))
def hard_swish(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """x where it is above 3, 0 below -3, and a parabola between."""
    xp = context.xp
    (x,) = required(inputs)
    return (x * xp.clip(x / 6 + x.dtype.type(0.5), x.dtype.type(0), x.dtype.type(1)),)


@kernel("HardSwishGrad", domain=WEFT_DOMAIN, in_float32=("float16", "bfloat16"))
def hard_swish_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The slope of HardSwish, times the gradient."""
    xp = context.xp
    gradient, x = required(inputs)
    slope = xp.where(x <= -3, x.dtype.type(0), xp.where(x >= 3, x.dtype.type(1), x / 3 + x.dtype.type(0.5)))
    return (gradient * slope,)


@kernel("Swish", in_float32=("float16", "bfloat16"))
def swish(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """x times the logistic function of a multiple of it."""
    (x,) = required(inputs)
    return (x * logistic(context.xp, x * x.dtype.type(as_float(attributes["alpha"]))),)


@kernel("SwiGLU", in_float32=("float16", "bfloat16"))
def swi_glu(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The swish of the gate, times the value."""
    gate, value = required(inputs)
    return (gate * logistic(context.xp, gate * gate.dtype.type(as_float(attributes["alpha"]))) * value,)


@kernel("Gelu", in_float32=("float16", "bfloat16"))
def gelu(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """x times the share of a standard normal's numbers that are below x."""
    xp = context.xp
    (x,) = required(inputs)
    return (x * normal_below(xp, x, as_str(attributes["approximate"])),)


@kernel("GeluGrad", domain=WEFT_DOMAIN, in_float32=("float16", "bfloat16"))
def gelu_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The slope of Gelu, times the gradient."""
    xp = context.xp
    gradient, x = required(inputs)
    approximate = as_str(attributes["approximate"])
    below, density = normal_below(xp, x, approximate), normal_density(xp, x, approximate)
    return (gradient * (below + x * density),)


@kernel("Mish", in_float32=("float16", "bfloat16"))
def mish(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """x * tanh(ln(exp(x) + 1)), without overflow."""
    xp = context.xp
    (x,) = required(inputs)
    return (x * tanh_of_softplus(xp, x),)


@kernel("MishGrad", domain=WEFT_DOMAIN, in_float32=("float16", "bfloat16"))
def mish_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The slope of Mish, times the gradient."""
    xp = context.xp
    gradient, x = required(inputs)
    level = tanh_of_softplus(xp, x)
    decayed = xp.exp(-xp.abs(x))
    sigmoid = xp.where(x >= 0, x.dtype.type(1), decayed) / (1 + decayed)
    return (gradient * (level + x * (1 - level * level) * sigmoid),)


@kernel("Softplus", in_float32=("float16", "bfloat16"))
def softplus(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """ln(exp(x) + 1), of whose two terms the larger one leads, so that nothing overflows."""
    xp = context.xp
    (x,) = required(inputs)
    return (xp.maximum(x, x.dtype.type(0)) + xp.log1p(xp.exp(-xp.abs(x))),)


@kernel("Softsign", in_float32=("float16", "bfloat16"))
def softsign(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Y = X / (1 + |X|)."""
    (x,) = required(inputs)
    return (x / (1 + context.xp.abs(x)),)
