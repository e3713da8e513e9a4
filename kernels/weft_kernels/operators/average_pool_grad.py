"""Each window's gradient, shared among the elements that it is the mean of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.windows import windows_of
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.windows.views import inside, padded_shape, places, weights

IN_FLOAT32 = ("float16", "bfloat16")


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, data = required(inputs)
    windows = windows_of(data.shape[2:], attributes.get)
    share = gradient * weights(xp, windows, gradient.dtype, include_pad=bool(as_int(attributes["count_include_pad"])))
    result = xp.zeros(padded_shape(data, windows), dtype=gradient.dtype)
    for _, part in places(windows):
        result[part] += share
    return (result[inside(windows)],)
