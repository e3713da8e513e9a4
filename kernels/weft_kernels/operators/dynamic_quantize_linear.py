"""Bytes, by the range of the elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_graph.types import DType
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.quantization import quantized


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    (data,) = required(inputs)
    zero = xp.zeros((), dtype=data.dtype)
    low, high = (xp.minimum(data.min(), zero), xp.maximum(data.max(), zero)) if data.size else (zero, zero)
    scale = (high - low) / data.dtype.type(255)
    scale = xp.where(scale == 0, data.dtype.type(1), scale)
    zero_point = quantized(xp, -low / scale, None, DType.UINT8)
    return quantized(xp, data / scale, zero_point, DType.UINT8), scale, zero_point
