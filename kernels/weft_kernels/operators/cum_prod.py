"""Running products along an axis, from either end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.axes import normalised
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.products.running import products_before

HOST_INPUTS = (1,)
IN_FLOAT32 = ("float16", "bfloat16")


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    data, given = required(inputs)
    axis, backwards = normalised(int(given.reshape(-1)[0]), data.ndim), as_int(attributes["reverse"])
    along = data.swapaxes(0, axis)
    along = along[::-1] if backwards else along
    if as_int(attributes["exclusive"]):
        result = products_before(xp, along)
    else:
        result = xp.cumprod(along, axis=0, dtype=data.dtype)
    return ((result[::-1] if backwards else result).swapaxes(0, axis),)
