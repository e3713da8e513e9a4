"""The square root of the sum of squares over the axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.reductions import axes_and_keepdims, summed

HOST_INPUTS = (1,)
IN_FLOAT32 = ("float16", "bfloat16")


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    (data,) = required(inputs, 1)
    axes, keepdims = axes_and_keepdims(optional(inputs, 1), attributes, data.ndim)

    wide = data.astype(xp.promote_types(data.dtype, xp.float32), copy=False)
    return (xp.sqrt(summed(xp, xp.square(wide), axes, keepdims=keepdims)).astype(data.dtype, copy=False),)
