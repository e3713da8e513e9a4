"""Differences from a zero point, times a scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_kernels.arguments import optional, required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.quantization import beside_data, less


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    data, scale = required(inputs, 2)
    zero_point, axis, block = optional(inputs, 2), as_int(attributes["axis"]), as_int(attributes["block_size"])
    asked = as_int(attributes["output_dtype"])
    dtype = DTYPE_OF_NUMBER[asked].numpy if asked else scale.dtype
    wide = xp.float64 if dtype == np.float64 else xp.float32
    offset = None if zero_point is None else beside_data(xp, zero_point, data.shape, axis, block)
    factor = beside_data(xp, scale.astype(wide), data.shape, axis, block)
    return ((less(xp, data, offset).astype(wide) * factor).astype(dtype, copy=False),)
