"""The largest or smallest elements, sorted; of equals the first come first."""

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
    data, given = required(inputs)
    axis, k = normalised(as_int(attributes["axis"]), data.ndim), int(given.reshape(-1)[0])
    size = data.shape[axis]
    if not 0 <= k <= size:
        raise ValueError(f"K is {k}, and dimension {axis} has {size} elements")
    if as_int(attributes["largest"]):
        # Sorted from the back, so that what is read from there again has the first of equals first.
        behind = xp.argsort(xp.flip(data, axis), axis=axis, kind="stable")
        order = size - 1 - xp.flip(behind, axis)
    else:
        order = xp.argsort(data, axis=axis, kind="stable")
    first = order[(slice(None),) * axis + (slice(0, k),)].astype(xp.int64, copy=False)
    return xp.take_along_axis(data, first, axis), first
