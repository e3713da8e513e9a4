"""The gradient where Relu's output is positive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    gradient, output = required(inputs)
    xp, made = context.xp, context.out(0)
    # Not a product: an infinite gradient, as of a root at 0, times 0 would be NaN.
    is_flat, zero = output <= 0, gradient.dtype.type(0)
    if made is None:
        return (xp.where(is_flat, zero, gradient),)
    if made is not gradient:
        xp.copyto(made, gradient)
    xp.copyto(made, zero, where=is_flat)
    return (made,)
