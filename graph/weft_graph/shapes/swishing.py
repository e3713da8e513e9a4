"""Swish, x * sigmoid(alpha * x), and its slope, as compositions for gradients."""

from __future__ import annotations

from weft_graph.attributes import as_float
from weft_graph.schema import GradientContext
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flow import scalar


def swish_slope(context: GradientContext, x: str) -> str:
    """The name of sigmoid(alpha * x) * (1 + alpha * x * (1 - sigmoid(alpha * x))), with the node's alpha."""
    alpha, one = scalar(context, as_float(context.attribute("alpha")), x), scalar(context, 1, x)
    scaled = apply(context, "Mul", x, alpha)
    share = apply(context, "Sigmoid", scaled)
    rest = apply(context, "Mul", scaled, apply(context, "Sub", one, share))
    return apply(context, "Mul", share, apply(context, "Add", one, rest))
