"""Comparisons, logic and bits, element by element; and the choice between two arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft_graph.dimensions import Amount, is_natural, minus, sign
from weft_graph.folding import FOLD_WHERE, by_element, by_pairs
from weft_graph.formals import ANY, BOOLEANS, INTEGERS, NUMBERS, required
from weft_graph.pointwise import binary, unary
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.broadcasting import (
    check_same_dtype,
    infer_binary,
    infer_broadcast,
    infer_comparison,
    sum_to,
)
from weft_graph.shapes.gradients import incoming, scalar
from weft_graph.types import TensorType

Truth = bool | None
"""What is known of a condition on dimensions that no step has filled yet."""


def _equal(a: Any, b: Any) -> Truth:
    """What a dimension is made of is never a number below 0."""
    if a is None or b is None:
        return None
    if any(isinstance(one, str) and isinstance(other, int) and other < 0 for one, other in ((a, b), (b, a))):
        return False
    difference = sign(minus(int(a) if isinstance(a, bool) else a, int(b) if isinstance(b, bool) else b))
    return None if difference is None else difference == 0


def _less(a: Amount, b: Amount) -> Truth:
    """Whether a < b for all sizes, or for none."""
    difference = sign(minus(b, a))
    if difference is not None:
        return difference > 0
    return False if is_natural(minus(a, b)) else None


def _greater(a: Amount, b: Amount) -> Truth:
    return _less(b, a)


def _at_most(a: Amount, b: Amount) -> Truth:
    return _not(_less(b, a))


def _at_least(a: Amount, b: Amount) -> Truth:
    return _not(_less(a, b))


def _not(a: Truth) -> Truth:
    return None if a is None else not a


def _both(a: Truth, b: Truth) -> Truth:
    if a is False or b is False:
        return False
    return None if a is None or b is None else True


def _either(a: Truth, b: Truth) -> Truth:
    return _not(_both(_not(a), _not(b)))


EQUAL = binary(
    "Equal", ANY, gives=BOOLEANS, infer=infer_comparison, commutative=True, folding=by_pairs(np.equal, _equal)
)
"""Equal: whether A equals B, element by element, broadcast."""


GREATER = binary("Greater", NUMBERS, gives=BOOLEANS, infer=infer_comparison, folding=by_pairs(np.greater, _greater))
"""Greater: whether A is greater than B, element by element, broadcast."""


GREATER_OR_EQUAL = binary(
    "GreaterOrEqual", NUMBERS, gives=BOOLEANS, infer=infer_comparison, folding=by_pairs(np.greater_equal, _at_least)
)
"""GreaterOrEqual: whether A is at least B, element by element, broadcast."""


LESS = binary("Less", NUMBERS, gives=BOOLEANS, infer=infer_comparison, folding=by_pairs(np.less, _less))
"""Less: whether A is below B, element by element, broadcast."""


LESS_OR_EQUAL = binary(
    "LessOrEqual", NUMBERS, gives=BOOLEANS, infer=infer_comparison, folding=by_pairs(np.less_equal, _at_most)
)
"""LessOrEqual: whether A is at most B, element by element, broadcast."""


AND = binary("And", BOOLEANS, infer=infer_comparison, commutative=True, folding=by_pairs(np.logical_and, _both))
"""And: whether both hold, element by element, broadcast."""


OR = binary("Or", BOOLEANS, infer=infer_comparison, commutative=True, folding=by_pairs(np.logical_or, _either))
"""Or: whether one or both hold, element by element, broadcast."""


XOR = binary("Xor", BOOLEANS, infer=infer_comparison, commutative=True, folding=by_pairs(np.logical_xor))
"""Xor: whether just one holds, element by element, broadcast."""


NOT = unary("Not", BOOLEANS, folding=by_element(np.logical_not, _not))
"""Not: whether X does not hold."""


def _infer_where(context: InferContext) -> tuple[TensorType, ...]:
    check_same_dtype(context, 1, 2)
    return (TensorType(context.input(1).dtype, infer_broadcast(context, 0, 1, 2)),)


def _where_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, condition = incoming(context), context.input(0)
    zero = scalar(context, 0, gradient)
    gradients: list[str | None] = [None, None, None]
    for index, chosen in ((1, (gradient, zero)), (2, (zero, gradient))):
        if context.needs(index):
            (part,) = context.emit("Where", (condition, *chosen))
            gradients[index] = sum_to(context, part, context.input(index))
    return tuple(gradients)


WHERE = OpSchema(
    op_type="Where",
    inputs=(required("condition", BOOLEANS), required("X", ANY), required("Y", ANY)),
    outputs=(required("output", ANY),),
    infer=_infer_where,
    gradient=_where_gradient,
    pointwise=True,
    follows=True,
    folding=FOLD_WHERE,
)
"""Where: X where the condition holds, Y elsewhere, broadcast."""


BITWISE_AND = binary("BitwiseAnd", INTEGERS, commutative=True)
"""BitwiseAnd: the and of the bits of A and B, element by element, broadcast."""


BITWISE_OR = binary("BitwiseOr", INTEGERS, commutative=True)
"""BitwiseOr: the or of the bits of A and B, element by element, broadcast."""


BITWISE_XOR = binary("BitwiseXor", INTEGERS, commutative=True)
"""BitwiseXor: the exclusive or of the bits of A and B, element by element, broadcast."""


BITWISE_NOT = unary("BitwiseNot", INTEGERS)
"""BitwiseNot: every bit of X turned round."""


def _infer_bit_shift(context: InferContext) -> tuple[TensorType, ...]:
    if context.attribute("direction") not in {"LEFT", "RIGHT"}:
        raise context.shape_error(f"direction {context.attribute('direction')!r} is none of LEFT, RIGHT")
    return infer_binary(context)


BIT_SHIFT = OpSchema(
    op_type="BitShift",
    inputs=(required("X", INTEGERS), required("Y", INTEGERS)),
    outputs=(required("Z", INTEGERS),),
    infer=_infer_bit_shift,
    attributes={"direction": Attribute(str, required=True)},
    pointwise=True,
)
"""BitShift: the bits of X moved by Y places to the side of `direction`, element by element, broadcast.

To the right a signed number keeps its sign. Where Y is below 0 or at least the number of bits, nothing but the sign is
left: -1 for a number below 0 that moves to the right, else 0.
"""
