"""Running sums along an axis, from either end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.axes import normalised
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext

HOST_INPUTS = (1,)
IN_FLOAT32 = ("float16", "bfloat16")


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    data, given = required(inputs)
    axis = normalised(int(given.reshape(-1)[0]), data.ndim)
    if as_int(attributes["reverse"]):
        return (xp.flip(_running(xp, xp.flip(data, axis), axis, attributes), axis),)
    return (_running(xp, data, axis, attributes),)


def _running(xp: Any, data: Array, axis: int, attributes: Mapping[str, AttributeValue]) -> Array:
    if not as_int(attributes["exclusive"]) or data.shape[axis] == 0:
        return xp.cumsum(data, axis=axis, dtype=data.dtype)  # type: ignore[no-any-return]  # xp is Any
    result = xp.zeros(data.shape, dtype=data.dtype)
    before = data.swapaxes(0, axis)[:-1]
    result.swapaxes(0, axis)[1:] = xp.cumsum(before, axis=0, dtype=data.dtype)
    return result  # type: ignore[no-any-return]  # xp is Any
