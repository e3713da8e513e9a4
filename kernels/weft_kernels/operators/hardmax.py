"""1 at the first largest element along an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.axes import normalised
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    (data,) = required(inputs)
    if data.size == 0:
        return (xp.zeros(data.shape, dtype=data.dtype),)
    axis = normalised(as_int(attributes["axis"]), data.ndim)
    first = xp.expand_dims(xp.argmax(data, axis=axis), axis)
    places = xp.arange(data.shape[axis]).reshape(-1, *(1,) * (data.ndim - 1 - axis))
    return ((places == first).astype(data.dtype),)
