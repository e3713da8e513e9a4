"""Each window's gradient, added at the first of its largest elements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_graph.shapes.windows import windows_of
from weft_kernels.arguments import required
from weft_kernels.cuda import windows as cuda
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.windows.views import inside, padded, places

IN_FLOAT32 = ("bfloat16",)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, data, output = required(inputs)
    windows = windows_of(data.shape[2:], attributes.get)
    if cuda.fits(xp, data, windows):
        return (cuda.max_pool_grad(xp, gradient, data, output, windows),)
    around = padded(xp, data, windows, -math.inf)
    result = xp.zeros(around.shape, dtype=gradient.dtype)
    left = xp.ones(output.shape, dtype=bool)
    for _, part in places(windows):
        chosen = left & (around[part] == output)
        result[part] += gradient * chosen
        left &= ~chosen
    return (result[inside(windows)],)
