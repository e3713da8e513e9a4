"""Gradients of one slice, added in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.indexing.elements import places_of_tuples, slices
from weft_kernels.indexing.rows import summed_rows
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, data, indices = required(inputs)
    batch_dims = as_int(attributes["batch_dims"])
    places = places_of_tuples(xp, indices, data.shape, batch_dims)
    count, width = slices(data, batch_dims + indices.shape[-1]).shape
    return (summed_rows(xp, gradient.reshape(places.size, width), places, count).reshape(data.shape),)
