"""The convolution of quantized numbers, quantized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_graph.types import DType
from weft_kernels.arguments import optional, required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.quantization import less, quantized
from weft_kernels.windows.convolution import convolved


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    data, data_scale, data_zero, weights, weights_scale, weights_zero, scale, zero_point = required(inputs, 8)
    kernel = less(xp, weights, weights_zero.reshape(-1, *(1,) * (weights.ndim - 1))).astype(xp.float64)
    result = convolved(xp, less(xp, data, data_zero.reshape(())).astype(xp.float64), kernel, attributes)
    by_feature = (-1, *(1,) * (result.ndim - 2))
    bias = optional(inputs, 8)
    if bias is not None:
        result = result + bias.reshape(by_feature)
    factor = data_scale.astype(xp.float64).reshape(()) * weights_scale.astype(xp.float64).reshape(by_feature)
    ratio = result * (factor / scale.astype(xp.float64).reshape(()))
    return (quantized(xp, ratio, zero_point.reshape(()), DType(zero_point.dtype.name)),)
