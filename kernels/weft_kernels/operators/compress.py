"""Elements or slices whose condition is true."""

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
    data, condition = required(inputs)
    if "axis" not in attributes:
        data, axis = data.reshape(-1), 0
    else:
        axis = normalised(as_int(attributes["axis"]), data.ndim)
    if condition.size > data.shape[axis]:
        raise ValueError(
            f"the condition has {condition.size} elements, and there are {data.shape[axis]} to choose from"
        )
    return (xp.take(data, xp.flatnonzero(condition), axis=axis),)
