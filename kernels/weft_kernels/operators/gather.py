"""Entries along an axis, by index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.axes import normalised
from weft_kernels.arguments import required
from weft_kernels.indexing.rows import checked_indices
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    data, indices = required(inputs)
    axis = normalised(as_int(attributes["axis"]), data.ndim)
    return (xp.take(data, checked_indices(xp, indices, data.shape[axis], wraps=True), axis=axis),)
