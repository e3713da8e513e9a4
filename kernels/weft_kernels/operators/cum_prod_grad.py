"""The gradient of running products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.axes import normalised
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.products.running import running_gradient

HOST_INPUTS = (2,)
IN_FLOAT32 = ("float16", "bfloat16")


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, data, given = required(inputs)
    axis, backwards = normalised(int(given.reshape(-1)[0]), data.ndim), as_int(attributes["reverse"])
    gradient, data = gradient.swapaxes(0, axis), data.swapaxes(0, axis)
    if backwards:
        gradient, data = gradient[::-1], data[::-1]
    if as_int(attributes["exclusive"]):
        # The product before a row is the product up to the row before it.
        shifted = xp.zeros(gradient.shape, dtype=gradient.dtype)
        shifted[:-1] = gradient[1:]
        gradient = shifted
    result = running_gradient(xp, gradient, data)
    return ((result[::-1] if backwards else result).swapaxes(0, axis),)
