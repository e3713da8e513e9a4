"""Gradient of a convolution's input: the transposed matrix product, scattered back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.windows import windows_of
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.windows.convolution import spread

IN_FLOAT32 = ()


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    gradient, data, weights = required(inputs)
    windows = windows_of(data.shape[2:], attributes.get, weights.shape[2:])
    group, out = as_int(attributes["group"]), context.out(0, gradient.dtype)
    return (spread(context.xp, gradient, weights, windows, group=group, out=out),)
