"""What the slopes of trigonometric and hyperbolic functions are made of."""

from __future__ import annotations

from weft_graph.schema import GradientContext
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flow import scalar


def one_plus_square(context: GradientContext, value: str) -> str:
    """The name of 1 + value^2."""
    return apply(context, "Add", scalar(context, 1, value), apply(context, "Mul", value, value))


def one_minus_square(context: GradientContext, value: str) -> str:
    """The name of 1 - value^2."""
    return apply(context, "Sub", scalar(context, 1, value), apply(context, "Mul", value, value))


def square_minus_one(context: GradientContext, value: str) -> str:
    """The name of value^2 - 1."""
    return apply(context, "Sub", apply(context, "Mul", value, value), scalar(context, 1, value))
