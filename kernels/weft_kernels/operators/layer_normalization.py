"""Each sample's elements standardized, then scaled and shifted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_float, as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.axes import normalised
from weft_kernels.arguments import optional, required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.normalization.standardized_rows import standardized, stash_of


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    data, scale = required(inputs, 2)
    axis = normalised(as_int(attributes["axis"]), data.ndim)
    rows = data.reshape(math.prod(data.shape[:axis]), math.prod(data.shape[axis:]))
    normal, mean, inverse = standardized(xp, rows, as_float(attributes["epsilon"]))
    result = normal.reshape(data.shape)
    result = xp.multiply(result, scale.astype(normal.dtype, copy=False), out=context.out(0, normal.dtype))
    bias = optional(inputs, 2)
    if bias is not None:
        result += bias.astype(normal.dtype, copy=False)
    shape = (*data.shape[:axis], *(1,) * (data.ndim - axis))
    given = stash_of(xp, data, as_int(attributes["stash_type"]))
    statistics = (array.reshape(shape).astype(given, copy=False) for array in (mean, inverse))
    return result.astype(data.dtype, copy=False), *statistics
