"""A matrix product that makes each element's spread, and the sum of all spreads where they fall."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.transposed import transposed_windows
from weft_kernels.arguments import optional, required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.windows import scattered

IN_FLOAT32 = ()


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    data, weights = required(inputs, 2)
    group = as_int(attributes["group"])
    batch, channels = data.shape[:2]
    features = weights.shape[1] * group
    windows = transposed_windows(data.shape[2:], attributes.get, weights.shape[2:])
    rows = weights.shape[1] * math.prod(windows.kernel)
    output = data.swapaxes(0, 1).reshape(group, channels // group, batch * math.prod(windows.count))
    lowered = xp.matmul(weights.reshape(group, channels // group, rows).swapaxes(1, 2), output)
    result = scattered(xp, lowered.reshape(features, *windows.kernel, batch, *windows.count), windows)
    bias = optional(inputs, 2)
    if bias is not None:
        result += bias.reshape(-1, *(1,) * len(windows.size))
    return (result,)
