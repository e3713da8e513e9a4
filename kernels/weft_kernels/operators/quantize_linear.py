"""Quotients by a scale, rounded to a narrow type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_graph.types import DType
from weft_kernels.arguments import optional, required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.quantization import beside_data, quantized

_DIVIDED_IN = {"int32": DType.FLOAT64, "float8_e8m0fnu": DType.FLOAT32}
"""Where the scale's own type has no division."""


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    data, scale = required(inputs, 2)
    zero_point, axis, block = optional(inputs, 2), as_int(attributes["axis"]), as_int(attributes["block_size"])
    asked, precision = as_int(attributes["output_dtype"]), as_int(attributes["precision"])
    dtype = DTYPE_OF_NUMBER[asked] if asked else DType.UINT8 if zero_point is None else DType(zero_point.dtype.name)
    divided_in = DTYPE_OF_NUMBER[precision] if precision else _DIVIDED_IN.get(scale.dtype.name, DType(scale.dtype.name))
    divisor = beside_data(xp, scale.astype(divided_in.numpy, copy=False), data.shape, axis, block)
    ratio = xp.divide(data.astype(divided_in.numpy, copy=False), divisor)
    offset = None if zero_point is None else beside_data(xp, zero_point, data.shape, axis, block)
    return (quantized(xp, ratio, offset, dtype, saturate=bool(as_int(attributes["saturate"]))),)
