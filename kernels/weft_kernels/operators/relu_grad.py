"""The gradient where Relu's output is positive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

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
    if xp is np:
        # All bits or none of them: NumPy chooses between elements ten times slower.
        made = np.empty_like(gradient) if made is None else made
        bits = f"i{gradient.dtype.itemsize}"
        kept = np.subtract(is_flat.view(np.int8), 1, dtype=bits)
        np.bitwise_and(gradient.view(bits), kept, out=made.view(bits))
        return (made,)
    if made is None:
        return (xp.where(is_flat, zero, gradient),)
    if made is not gradient:
        xp.copyto(made, gradient)
    xp.copyto(made, zero, where=is_flat)
    return (made,)
