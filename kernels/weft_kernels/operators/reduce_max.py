"""The largest element over the axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.reductions import axes_and_keepdims, extreme

HOST_INPUTS = (1,)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    (data,) = required(inputs, 1)
    axes, keepdims = axes_and_keepdims(optional(inputs, 1), attributes, data.ndim)
    return (extreme(xp, data, axes, keepdims=keepdims, largest=True),)
