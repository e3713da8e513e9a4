"""Gradient of a convolution's input: the transposed matrix product, scattered back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.windows import windows_of
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.windows import scattered

IN_FLOAT32 = ()


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, data, weights = required(inputs)
    group = as_int(attributes["group"])
    batch, channels = data.shape[:2]
    features = weights.shape[0]
    windows = windows_of(data.shape[2:], attributes.get, weights.shape[2:])
    rows = channels // group * math.prod(windows.kernel)
    output = gradient.swapaxes(0, 1).reshape(group, features // group, batch * math.prod(windows.count))
    lowered = xp.matmul(weights.reshape(group, features // group, rows).swapaxes(1, 2), output)
    return (scattered(xp, lowered.reshape(channels, *windows.kernel, batch, *windows.count), windows),)
