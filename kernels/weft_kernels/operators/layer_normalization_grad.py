"""Gradients of the data and of the scale, by the statistics of the way forward."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.axes import normalised
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.matrix import sum_stack
from weft_kernels.standardizing import standardized_gradient


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, data, scale, mean, inverse = required(inputs)
    axis = normalised(as_int(attributes["axis"]), data.ndim)
    shape = (math.prod(data.shape[:axis]), math.prod(data.shape[axis:]))
    normal = (data - mean) * inverse
    by_scale = sum_stack(xp, gradient * normal, scale.shape)
    by_normal = (gradient * scale).astype(normal.dtype, copy=False)
    result = standardized_gradient(xp, by_normal.reshape(shape), normal.reshape(shape), inverse.reshape(shape[0], 1))
    return result.reshape(data.shape).astype(data.dtype, copy=False), by_scale.astype(scale.dtype, copy=False)
