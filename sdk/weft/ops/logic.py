"""Comparisons and logic, element by element; the operands broadcast and the result is bool."""

from __future__ import annotations

from weft.expression import Expression, Operand
from weft.ops.generic import Name, one


def less(a: Operand, b: Operand, *, name: Name = None) -> Expression:
    """Whether a < b."""
    return one("Less", a, b, name=name)


def less_or_equal(a: Operand, b: Operand, *, name: Name = None) -> Expression:
    """Whether a <= b."""
    return one("LessOrEqual", a, b, name=name)


def greater_or_equal(a: Operand, b: Operand, *, name: Name = None) -> Expression:
    """Whether a >= b."""
    return one("GreaterOrEqual", a, b, name=name)


def logical_not(x: Operand, *, name: Name = None) -> Expression:
    """Whether x does not hold."""
    return one("Not", x, name=name)


def logical_and(a: Operand, b: Operand, *, name: Name = None) -> Expression:
    """Whether both hold."""
    return one("And", a, b, name=name)


def logical_or(a: Operand, b: Operand, *, name: Name = None) -> Expression:
    """Whether one or both hold."""
    return one("Or", a, b, name=name)


def logical_xor(a: Operand, b: Operand, *, name: Name = None) -> Expression:
    """Whether just one holds."""
    return one("Xor", a, b, name=name)


def is_nan(x: Operand, *, name: Name = None) -> Expression:
    """Whether x is not a number."""
    return one("IsNaN", x, name=name)


def is_inf(x: Operand, *, name: Name = None) -> Expression:
    """Whether x is infinite."""
    return one("IsInf", x, name=name)
