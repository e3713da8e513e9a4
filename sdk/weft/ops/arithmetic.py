"""Functions of one number, and operators of any number of operands, element by element."""

from __future__ import annotations

from weft.expression import Expression, Operand
from weft.ops.generic import Name, one


def abs(x: Operand, *, name: Name = None) -> Expression:  # noqa: A001 - ONNX's word
    """|x|."""
    return one("Abs", x, name=name)


def sign(x: Operand, *, name: Name = None) -> Expression:
    """-1, 0 or 1, as the sign of x is. It has no slope: nothing is trained through it."""
    return one("Sign", x, name=name)


def reciprocal(x: Operand, *, name: Name = None) -> Expression:
    """1 / x."""
    return one("Reciprocal", x, name=name)


def floor(x: Operand, *, name: Name = None) -> Expression:
    """The largest whole number that is not above x. It has no slope."""
    return one("Floor", x, name=name)


def ceil(x: Operand, *, name: Name = None) -> Expression:
    """The smallest whole number that is not below x. It has no slope."""
    return one("Ceil", x, name=name)


def round(x: Operand, *, name: Name = None) -> Expression:  # noqa: A001 - ONNX's word
    """The whole number nearest to x; of two, the even one. It has no slope."""
    return one("Round", x, name=name)


def sin(x: Operand, *, name: Name = None) -> Expression:
    """The sine of x in radians."""
    return one("Sin", x, name=name)


def cos(x: Operand, *, name: Name = None) -> Expression:
    """The cosine of x in radians."""
    return one("Cos", x, name=name)


def erf(x: Operand, *, name: Name = None) -> Expression:
    """The error function of x."""
    return one("Erf", x, name=name)


def clip(x: Operand, low: Operand | None = None, high: Operand | None = None, *, name: Name = None) -> Expression:
    """x, not below `low` and not above `high`, scalars of which either may be left out."""
    return one("Clip", x, low, high, name=name)


def mod(a: Operand, b: Operand, *, fmod: bool = False, name: Name = None) -> Expression:
    """What is left of a / b, of b's sign, or of a's with `fmod`."""
    return one("Mod", a, b, fmod=int(fmod), name=name)


def max(*operands: Operand, name: Name = None) -> Expression:  # noqa: A001 - ONNX's word
    """The largest operand, element by element; they broadcast. Equals share the gradient."""
    return one("Max", *operands, name=name)


def min(*operands: Operand, name: Name = None) -> Expression:  # noqa: A001 - ONNX's word
    """The smallest operand, element by element; they broadcast. Equals share the gradient."""
    return one("Min", *operands, name=name)


def sum(*operands: Operand, name: Name = None) -> Expression:  # noqa: A001 - ONNX's word
    """The sum of all operands, element by element; they broadcast. Over axes it is `reduce_sum`."""
    return one("Sum", *operands, name=name)


def mean(*operands: Operand, name: Name = None) -> Expression:
    """The mean of all operands, element by element; they broadcast. Over axes it is `reduce_mean`."""
    return one("Mean", *operands, name=name)
