"""The data with a slice of updates for each tuple of indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_str
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.indexing.elements import places_of_tuples, scattered, slices
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    data, indices, updates = required(inputs)
    places = places_of_tuples(context.xp, indices, data.shape)
    rows = slices(data, indices.shape[-1])
    given = updates.reshape(places.size, rows.shape[1])
    return (scattered(context.xp, rows, places, given, as_str(attributes["reduction"])).reshape(data.shape),)
