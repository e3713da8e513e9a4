"""Gradients of the data and of the scale, by the statistics of the way forward."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_float, as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.axes import normalised
from weft_kernels.arguments import required
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.normalization.standardized_rows import standardized, standardized_gradient
from weft_kernels.products.matrix import sum_stack


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, data, scale, mean, inverse = required(inputs)
    axis = normalised(as_int(attributes["axis"]), data.ndim)
    shape = (math.prod(data.shape[:axis]), math.prod(data.shape[axis:]))
    wide = statistics_dtype(xp, data)
    if mean.dtype == wide:
        normal = (data - mean) * inverse
    else:
        rows, _, inverse = standardized(xp, data.reshape(shape), as_float(attributes["epsilon"]))
        normal = rows.reshape(data.shape)
    gradient = gradient.astype(wide, copy=False)
    by_scale = sum_stack(xp, gradient * normal, scale.shape)
    by_normal = gradient * scale.astype(wide, copy=False)
    result = standardized_gradient(xp, by_normal.reshape(shape), normal.reshape(shape), inverse.reshape(shape[0], 1))
    return result.reshape(data.shape).astype(data.dtype, copy=False), by_scale.astype(scale.dtype, copy=False)
