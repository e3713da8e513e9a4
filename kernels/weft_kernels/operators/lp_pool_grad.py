"""Each window's share, added to its elements, times the slope of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.windows import windows_of
from weft_kernels.arguments import required
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.norms import norm_share, norm_slope
from weft_kernels.windows.views import inside, padded_shape, places


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, data, output = required(inputs)
    windows, p = windows_of(data.shape[2:], attributes.get), as_int(attributes["p"])
    dtype = statistics_dtype(xp, data)
    share = norm_share(xp, gradient.astype(dtype, copy=False), output.astype(dtype, copy=False), p)
    result = xp.zeros(padded_shape(data, windows), dtype=dtype)
    for _, part in places(windows):
        result[part] += share
    slope = norm_slope(xp, data.astype(dtype, copy=False), p)
    return ((result[inside(windows)] * slope).astype(data.dtype, copy=False),)
