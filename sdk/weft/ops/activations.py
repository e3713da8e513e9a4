"""Activation functions, element by element."""

from __future__ import annotations

from weft.expression import Expression, Operand
from weft.ops.generic import Name, one


def leaky_relu(x: Operand, alpha: float = 0.01, *, name: Name = None) -> Expression:
    """x, where it is below 0 alpha * x."""
    return one("LeakyRelu", x, alpha=float(alpha), name=name)


def prelu(x: Operand, slope: Operand, *, name: Name = None) -> Expression:
    """x, where it is below 0 slope * x; the slope broadcasts to x."""
    return one("PRelu", x, slope, name=name)


def elu(x: Operand, alpha: float = 1.0, *, name: Name = None) -> Expression:
    """x, where it is below 0 alpha * (exp(x) - 1). Clevert et al. 2015."""
    return one("Elu", x, alpha=float(alpha), name=name)


def selu(x: Operand, *, name: Name = None) -> Expression:
    """Elu with the two numbers that keep mean 0 and variance 1 over layers. Klambauer et al. 2017."""
    return one("Selu", x, name=name)


def celu(x: Operand, alpha: float = 1.0, *, name: Name = None) -> Expression:
    """x, where it is below 0 alpha * (exp(x / alpha) - 1). Barron 2017."""
    return one("Celu", x, alpha=float(alpha), name=name)


def gelu(x: Operand, *, approximate: bool = False, name: Name = None) -> Expression:
    """x * P(a standard normal number is below x), or with a tanh for P. Hendrycks and Gimpel 2016."""
    return one("Gelu", x, approximate="tanh" if approximate else "none", name=name)


def softplus(x: Operand, *, name: Name = None) -> Expression:
    """log(exp(x) + 1)."""
    return one("Softplus", x, name=name)


def softsign(x: Operand, *, name: Name = None) -> Expression:
    """x / (1 + |x|)."""
    return one("Softsign", x, name=name)


def hard_sigmoid(x: Operand, alpha: float = 0.2, beta: float = 0.5, *, name: Name = None) -> Expression:
    """alpha * x + beta, within 0 and 1."""
    return one("HardSigmoid", x, alpha=float(alpha), beta=float(beta), name=name)


def hard_swish(x: Operand, *, name: Name = None) -> Expression:
    """x * max(0, min(1, x / 6 + 1 / 2)). Howard et al. 2019."""
    return one("HardSwish", x, name=name)


def mish(x: Operand, *, name: Name = None) -> Expression:
    """x * tanh(log(exp(x) + 1)). Misra 2019."""
    return one("Mish", x, name=name)
