"""A matrix product that makes each element's spread, and the sum of all spreads where they fall."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.transposed import transposed_windows
from weft_kernels.arguments import optional, required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.windows.convolution import spread

IN_FLOAT32 = ()


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    data, weights = required(inputs, 2)
    windows = transposed_windows(data.shape[2:], attributes.get, weights.shape[2:])
    group, out = as_int(attributes["group"]), context.out(0, data.dtype)
    result = spread(context.xp, data, weights, windows, group=group, out=out)
    bias = optional(inputs, 2)
    if bias is not None:
        result += bias.reshape(-1, *(1,) * len(windows.size))
    return (result,)
