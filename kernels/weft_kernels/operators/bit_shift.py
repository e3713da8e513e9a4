"""The bits moved by so many places; the processor is never asked for more than there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_str
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    x, places = required(inputs)
    last, zero = places.dtype.type(8 * x.dtype.itemsize - 1), x.dtype.type(0)
    outside = (places < places.dtype.type(0)) | (places > last)
    within = xp.where(outside, last, places)
    if as_str(attributes["direction"]) == "LEFT":
        return (xp.where(outside, zero, xp.left_shift(x, within)),)
    shifted = xp.right_shift(x, within)
    return (shifted if x.dtype.kind == "i" else xp.where(outside, zero, shifted),)
