"""The mean of each window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.windows import windows_of
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.windows.views import padded, places, weights

IN_FLOAT32 = ("float16", "bfloat16")


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    (data,) = required(inputs)
    windows = windows_of(data.shape[2:], attributes.get)
    around = padded(xp, data, windows, 0)
    total = xp.zeros((*data.shape[:2], *windows.count), dtype=data.dtype)
    for _, part in places(windows):
        total += around[part]
    total *= weights(xp, windows, data.dtype, include_pad=bool(as_int(attributes["count_include_pad"])))
    return (total,)
