"""The root of each window's sum of powers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.windows import windows_of
from weft_kernels.arguments import required
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.norms import powered, root
from weft_kernels.windows.views import padded, places


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    (data,) = required(inputs)
    windows, p = windows_of(data.shape[2:], attributes.get), as_int(attributes["p"])
    around = padded(xp, powered(xp, data.astype(statistics_dtype(xp, data), copy=False), p), windows, 0)
    total = xp.zeros((*data.shape[:2], *windows.count), dtype=around.dtype)
    for _, part in places(windows):
        total += around[part]
    return (root(xp, total, p).astype(data.dtype, copy=False),)
