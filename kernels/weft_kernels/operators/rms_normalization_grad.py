"""Gradients of the data and of the scale; the root mean square is computed again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_float, as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.axes import normalised
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.normalization.standardized_rows import over_root_mean_square
from weft_kernels.products.matrix import sum_stack


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, data, scale = required(inputs)
    axis = normalised(as_int(attributes["axis"]), data.ndim)
    shape = (math.prod(data.shape[:axis]), math.prod(data.shape[axis:]))
    normal, inverse = over_root_mean_square(xp, data.reshape(shape), as_float(attributes["epsilon"]))
    gradient, wide_scale = (array.astype(normal.dtype, copy=False) for array in (gradient, scale))
    by_scale = sum_stack(xp, gradient * normal.reshape(data.shape), scale.shape)
    result = (gradient * wide_scale).reshape(shape)
    result -= normal * (xp.sum(result * normal, axis=1, keepdims=True, dtype=normal.dtype) / max(shape[1], 1))
    result *= inverse
    return result.reshape(data.shape).astype(data.dtype, copy=False), by_scale.astype(scale.dtype, copy=False)
