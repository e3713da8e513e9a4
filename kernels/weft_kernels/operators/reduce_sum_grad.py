"""The gradient of a sum: a read-only view of it in the data's shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.axes import reduction_axes, widened
from weft_kernels.kernel import Array, KernelContext

HOST_INPUTS = (2,)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    gradient, data = required(inputs, 2)
    axes = reduction_axes(optional(inputs, 2), attributes, data.ndim)
    return (context.xp.broadcast_to(widened(gradient, axes, data.ndim), data.shape),)
