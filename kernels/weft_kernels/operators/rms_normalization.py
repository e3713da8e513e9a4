"""Each sample's elements over the root of their mean square, then scaled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_float, as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.axes import normalised
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.normalization.standardized_rows import over_root_mean_square


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    data, scale = required(inputs)
    axis = normalised(as_int(attributes["axis"]), data.ndim)
    rows = data.reshape(math.prod(data.shape[:axis]), math.prod(data.shape[axis:]))
    normal, _ = over_root_mean_square(context.xp, rows, as_float(attributes["epsilon"]))
    result = normal.reshape(data.shape) * scale.astype(normal.dtype, copy=False)
    return (result.astype(scale.dtype, copy=False),)
