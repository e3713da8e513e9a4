"""The data with an update for each index along an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int, as_str
from weft_graph.ir import AttributeValue
from weft_graph.shapes.axes import normalised
from weft_kernels.arguments import required
from weft_kernels.indexing.elements import places_along, scattered
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    data, indices, updates = required(inputs)
    places = places_along(context.xp, indices, data.shape, normalised(as_int(attributes["axis"]), data.ndim)).reshape(
        -1
    )
    rows = scattered(
        context.xp, data.reshape(-1, 1), places, updates.reshape(places.size, 1), as_str(attributes["reduction"])
    )
    return (rows.reshape(data.shape),)
