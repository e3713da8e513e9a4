"""Gradients of one element, added in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.axes import normalised
from weft_kernels.arguments import required
from weft_kernels.indexing.elements import places_along
from weft_kernels.indexing.rows import summed_rows
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, data, indices = required(inputs)
    places = places_along(xp, indices, data.shape, normalised(as_int(attributes["axis"]), data.ndim))
    return (summed_rows(xp, gradient.reshape(-1, 1), places.reshape(-1), data.size).reshape(data.shape),)
