"""A causal convolution of each channel by itself, and the state for what comes after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.windows.causal import convolved, sigmoid, with_state


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    data, weight = required(inputs, 2)
    width = weight.shape[2]
    padded = with_state(xp, data, optional(inputs, 3), width)
    result = convolved(xp, padded, weight, optional(inputs, 2))
    if attributes["activation"] != "none":
        result *= sigmoid(xp, result)
    state = padded[:, :, padded.shape[2] - width + 1 :]
    return result.astype(data.dtype, copy=False), state.astype(data.dtype, copy=False)
