"""Comparisons, logic and bits, element by element; and the choice between two arrays."""

from __future__ import annotations

from weft_graph.attributes import as_str
from weft_kernels.arguments import required
from weft_kernels.kernel import Attributes, Inputs, KernelContext, Outputs, kernel


@kernel("Equal")
def equal(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Whether A equals B, element by element."""
    left, right = required(inputs)
    return (context.xp.equal(left, right, out=context.out(0)),)


@kernel("Greater")
def greater(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Whether A is greater than B, element by element."""
    left, right = required(inputs)
    return (context.xp.greater(left, right, out=context.out(0)),)


@kernel("GreaterOrEqual")
def greater_or_equal(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Whether one is at least the other, element by element."""
    left, right = required(inputs)
    return (context.xp.greater_equal(left, right, out=context.out(0)),)


@kernel("Less")
def less(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Whether one is below the other, element by element."""
    left, right = required(inputs)
    return (context.xp.less(left, right, out=context.out(0)),)


@kernel("LessOrEqual")
def less_or_equal(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Whether one is at most the other, element by element."""
    left, right = required(inputs)
    return (context.xp.less_equal(left, right, out=context.out(0)),)


@kernel("And")
def and_(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Whether both hold, element by element."""
    left, right = required(inputs)
    return (context.xp.logical_and(left, right, out=context.out(0)),)


@kernel("Or")
def or_(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Whether one or both hold, element by element."""
    left, right = required(inputs)
    return (context.xp.logical_or(left, right, out=context.out(0)),)


@kernel("Xor")
def xor(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Whether just one holds, element by element."""
    left, right = required(inputs)
    return (context.xp.logical_xor(left, right, out=context.out(0)),)


@kernel("Not")
def not_(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Whether it does not hold."""
    (x,) = required(inputs)
    return (context.xp.logical_not(x, out=context.out(0)),)


@kernel("Where")
def where(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """A choice of two broadcast arrays, element by element."""
    condition, chosen, other = required(inputs)
    return (context.xp.where(condition, chosen, other),)


@kernel("BitwiseAnd")
def bitwise_and(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The and of the bits of two broadcast arrays."""
    left, right = required(inputs)
    return (context.xp.bitwise_and(left, right),)


@kernel("BitwiseOr")
def bitwise_or(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The or of the bits of two broadcast arrays."""
    left, right = required(inputs)
    return (context.xp.bitwise_or(left, right),)


@kernel("BitwiseXor")
def bitwise_xor(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The exclusive or of the bits of two broadcast arrays."""
    left, right = required(inputs)
    return (context.xp.bitwise_xor(left, right),)


@kernel("BitwiseNot")
def bitwise_not(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Every bit turned round."""
    (x,) = required(inputs)
    return (context.xp.invert(x),)


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
