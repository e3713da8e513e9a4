"""The gradient of a mean: a read-only view, in the data's shape, of what each element has of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.axes import reduction_axes, widened
from weft_kernels.kernel import Array, KernelContext

HOST_INPUTS = (2,)
IN_FLOAT32 = ("float16", "bfloat16")


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    gradient, data = required(inputs, 2)
    axes = reduction_axes(optional(inputs, 2), attributes, data.ndim)
    # Where there is nothing to take the mean of, there is no element that has a share either.
    share = widened(gradient, axes, data.ndim) / max(math.prod(data.shape[axis] for axis in axes), 1)
    return (context.xp.broadcast_to(share, data.shape),)
