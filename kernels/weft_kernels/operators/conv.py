"""Convolution as one matrix product for each group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.windows.convolution import convolved

IN_FLOAT32 = ()


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    data, weights = required(inputs, 2)
    # The features lead in memory, which is also how the gradients want to read it; only the view is ONNX's order.
    result = convolved(context.xp, data, weights, attributes, context.out(0, data.dtype))
    bias = optional(inputs, 2)
    if bias is not None:
        result += bias.reshape(-1, *(1,) * (result.ndim - 2))
    return (result,)
