"""Gradients summed by the index of what they belong to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.axes import normalised
from weft_kernels.arguments import required
from weft_kernels.indexing.rows import checked_indices, summed_rows
from weft_kernels.kernel import Array, KernelContext

IN_FLOAT32 = ("bfloat16",)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, data, indices = required(inputs)
    axis = normalised(as_int(attributes["axis"]), data.ndim)
    padding = as_int(attributes["padding_id"]) if "padding_id" in attributes else None
    count, before, after = data.shape[axis], data.shape[:axis], data.shape[axis + 1 :]
    wraps = bool(as_int(attributes["wraps"]))
    index = checked_indices(xp, indices, count, wraps=wraps, padding_id=padding).reshape(-1)
    # (before, indices, after) -> a row for each index, of all that belongs to it.
    rows = gradient.reshape(math.prod(before), index.size, math.prod(after)).swapaxes(0, 1)
    summed = summed_rows(xp, rows.reshape(index.size, math.prod(before) * math.prod(after)), index, count)
    return (summed.reshape(count, math.prod(before), math.prod(after)).swapaxes(0, 1).reshape(data.shape),)
