"""One of two values, by whether a place is that of the index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.axes import normalised
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext

HOST_INPUTS = (1,)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    indices, depth, values = required(inputs)
    count, axis = int(depth.reshape(-1)[0]), as_int(attributes["axis"])
    wide = xp.expand_dims(indices.astype(xp.int64, copy=False), axis)
    places = xp.arange(count).reshape(-1, *(1,) * (wide.ndim - 1 - normalised(axis, wide.ndim)))
    chosen = (wide == places) | (wide == places - count)
    return (xp.where(chosen, values[1], values[0]),)
