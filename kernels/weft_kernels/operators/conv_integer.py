"""The convolution of bytes less their zero points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.quantization import less
from weft_kernels.windows.convolution import convolved


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    data, weights = required(inputs, 2)
    zero_point, weights_zero = optional(inputs, 2), optional(inputs, 3)
    if weights_zero is not None:
        weights_zero = weights_zero.reshape(-1, *(1,) * (weights.ndim - 1))
    wide = less(xp, data, None if zero_point is None else zero_point.reshape(())).astype(xp.float64)
    result = convolved(xp, wide, less(xp, weights, weights_zero).astype(xp.float64), attributes)
    return (result.astype(xp.int64).astype(xp.int32),)
