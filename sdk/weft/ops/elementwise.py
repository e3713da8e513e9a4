"""Operators that work element by element. Two operands broadcast as in NumPy and have one element type."""

from __future__ import annotations

from weft.declared import element_type
from weft.expression import Expression, Operand
from weft.ops.generic import Name, one
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.types import DType


def add(a: Operand, b: Operand, *, name: Name = None) -> Expression:
    """a + b."""
    return one("Add", a, b, name=name)


def sub(a: Operand, b: Operand, *, name: Name = None) -> Expression:
    """a - b."""
    return one("Sub", a, b, name=name)


def mul(a: Operand, b: Operand, *, name: Name = None) -> Expression:
    """a * b."""
    return one("Mul", a, b, name=name)


def div(a: Operand, b: Operand, *, name: Name = None) -> Expression:
    """a / b; integers are divided towards zero."""
    return one("Div", a, b, name=name)


def pow(base: Operand, exponent: Operand, *, name: Name = None) -> Expression:  # noqa: A001 - ONNX's word
    """base ** exponent, of the base's element type."""
    return one("Pow", base, exponent, name=name)


def neg(x: Operand, *, name: Name = None) -> Expression:
    """-x."""
    return one("Neg", x, name=name)


def exp(x: Operand, *, name: Name = None) -> Expression:
    """e to the power of x."""
    return one("Exp", x, name=name)


def log(x: Operand, *, name: Name = None) -> Expression:
    """The natural logarithm of x."""
    return one("Log", x, name=name)


def sqrt(x: Operand, *, name: Name = None) -> Expression:
    """The square root of x; NaN for negative elements."""
    return one("Sqrt", x, name=name)


def relu(x: Operand, *, name: Name = None) -> Expression:
    """max(x, 0)."""
    return one("Relu", x, name=name)


def sigmoid(x: Operand, *, name: Name = None) -> Expression:
    """1 / (1 + exp(-x))."""
    return one("Sigmoid", x, name=name)


def tanh(x: Operand, *, name: Name = None) -> Expression:
    """The hyperbolic tangent of x."""
    return one("Tanh", x, name=name)


def identity(x: Operand, *, name: Name = None) -> Expression:
    """x; gives a value another name."""
    return one("Identity", x, name=name)


def equal(a: Operand, b: Operand, *, name: Name = None) -> Expression:
    """Whether a = b, as bool."""
    return one("Equal", a, b, name=name)


def greater(a: Operand, b: Operand, *, name: Name = None) -> Expression:
    """Whether a > b, as bool."""
    return one("Greater", a, b, name=name)


def where(condition: Operand, a: Operand, b: Operand, *, name: Name = None) -> Expression:
    """a where `condition` (bool) holds, else b; all three broadcast."""
    return one("Where", condition, a, b, name=name)


def cast(x: Operand, dtype: DType | str, *, name: Name = None) -> Expression:
    """x with another element type. Floats are cut towards zero on the way to integers."""
    return one("Cast", x, to=NUMBER_OF_DTYPE[element_type(dtype, "cast")], name=name)
