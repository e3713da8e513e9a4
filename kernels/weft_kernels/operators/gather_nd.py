"""A slice of the data for each tuple of indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.indexing.elements import places_of_tuples, slices
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    data, indices = required(inputs)
    batch_dims = as_int(attributes["batch_dims"])
    named = batch_dims + indices.shape[-1]
    places = places_of_tuples(xp, indices, data.shape, batch_dims)
    rows = xp.take(slices(data, named), places, axis=0)
    return (rows.reshape(*indices.shape[:-1], *data.shape[named:]),)
