"""Convolution as one matrix product for each group."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.windows import windows_of
from weft_kernels.arguments import optional, required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.windows import columns

IN_FLOAT32 = ()


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    data, weights = required(inputs, 2)
    group = as_int(attributes["group"])
    features = weights.shape[0]
    windows = windows_of(data.shape[2:], attributes.get, weights.shape[2:])
    lowered = columns(xp, data, windows, group)
    # The features lead in memory, which is also how the gradients want to read it; only the view is ONNX's order.
    out = context.out(0, lowered.dtype)
    into = None if out is None else out.swapaxes(0, 1).reshape(group, features // group, lowered.shape[2])
    result = xp.matmul(weights.reshape(group, features // group, lowered.shape[1]), lowered, out=into)
    result = result.reshape(features, data.shape[0] * math.prod(windows.count))
    bias = optional(inputs, 2)
    if bias is not None:
        result += bias[:, None]
    if out is not None:
        return (out,)
    return (result.reshape(features, data.shape[0], *windows.count).swapaxes(0, 1),)
