"""Comparisons, logic and bits, element by element; and the choice between two arrays."""

from __future__ import annotations

from weft_graph.attributes import as_str
from weft_kernels.arguments import required
from weft_kernels.kernel import Attributes, Inputs, KernelContext, Outputs, function, kernel

equal = function("Equal", "equal")
"""Whether A equals B, element by element."""


greater = function("Greater", "greater")
"""Whether A is greater than B, element by element."""


greater_or_equal = function("GreaterOrEqual", "greater_equal")
"""Whether one is at least the other, element by element."""


less = function("Less", "less")
"""Whether one is below the other, element by element."""


less_or_equal = function("LessOrEqual", "less_equal")
"""Whether one is at most the other, element by element."""


and_ = function("And", "logical_and")
"""Whether both hold, element by element."""


or_ = function("Or", "logical_or")
"""Whether one or both hold, element by element."""


xor = function("Xor", "logical_xor")
"""Whether just one holds, element by element."""


not_ = function("Not", "logical_not")
"""Whether it does not hold."""


@kernel("Where")
def where(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """A choice of two broadcast arrays, element by element."""
    condition, chosen, other = required(inputs)
    return (context.xp.where(condition, chosen, other),)


bitwise_and = function("BitwiseAnd", "bitwise_and")
"""The and of the bits of two broadcast arrays."""


bitwise_or = function("BitwiseOr", "bitwise_or")
"""The or of the bits of two broadcast arrays."""


bitwise_xor = function("BitwiseXor", "bitwise_xor")
"""The exclusive or of the bits of two broadcast arrays."""


bitwise_not = function("BitwiseNot", "invert")
"""Every bit turned round."""


@kernel("BitShift")
def bit_shift(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The bits moved by so many places; the processor is never asked for more than there are."""
    xp = context.xp
    x, places = required(inputs)
    last, zero = places.dtype.type(8 * x.dtype.itemsize - 1), x.dtype.type(0)
    outside = (places < places.dtype.type(0)) | (places > last)
    within = xp.where(outside, last, places)
    if as_str(attributes["direction"]) == "LEFT":
        return (xp.where(outside, zero, xp.left_shift(x, within)),)
    shifted = xp.right_shift(x, within)
    return (shifted if x.dtype.kind == "i" else xp.where(outside, zero, shifted),)
