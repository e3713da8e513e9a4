"""Gradient of a convolution's weights: one matrix product for each group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.windows import windows_of
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.windows import columns

IN_FLOAT32 = ()


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, data, weights = required(inputs)
    group = as_int(attributes["group"])
    features = weights.shape[0]
    windows = windows_of(data.shape[2:], attributes.get, weights.shape[2:])
    lowered = columns(xp, data, windows, group)
    output = gradient.swapaxes(0, 1).reshape(group, features // group, lowered.shape[2])
    return (xp.matmul(output, lowered.swapaxes(1, 2)).reshape(weights.shape),)
