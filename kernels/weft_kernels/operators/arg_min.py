"""Index of the smallest element along an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    (data,) = required(inputs)
    axis = as_int(attributes["axis"])
    if as_int(attributes["select_last_index"]):
        index = data.shape[axis] - 1 - xp.argmin(xp.flip(data, axis), axis=axis)
    else:
        index = xp.argmin(data, axis=axis)
    index = xp.asarray(index, dtype=xp.int64)
    return (xp.expand_dims(index, axis) if as_int(attributes["keepdims"]) else index,)
