"""Gradients of the input, the kernels, the bias and the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.windows.causal import convolved, sigmoid, with_state


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    data, weight = required(inputs, 2)
    width, length = weight.shape[2], data.shape[2]
    padded = with_state(xp, data, optional(inputs, 3), width)
    flowing, of_state = optional(inputs, 4), optional(inputs, 5)
    by_padded = xp.zeros_like(padded)
    by_weight = xp.zeros(weight.shape, dtype=padded.dtype)
    by_bias = xp.zeros(weight.shape[:1], dtype=padded.dtype)
    if flowing is not None:
        by_sums = flowing.astype(padded.dtype, copy=False)
        if attributes["activation"] != "none":
            by_sums = by_sums * _slope(xp, convolved(xp, padded, weight, optional(inputs, 2)))
        for place in range(width):
            part = slice(place, place + length)
            by_padded[:, :, part] += by_sums * weight[:, :, place]
            by_weight[:, 0, place] = xp.sum(by_sums * padded[:, :, part], axis=(0, 2), dtype=padded.dtype)
        by_bias = xp.sum(by_sums, axis=(0, 2), dtype=padded.dtype)
    if of_state is not None:
        by_padded[:, :, padded.shape[2] - width + 1 :] += of_state
    results = by_padded[:, :, width - 1 :], by_weight, by_bias, by_padded[:, :, : width - 1]
    return tuple(array.astype(data.dtype, copy=False) for array in results)


def _slope(xp: Any, sums: Array) -> Array:
    """Of x * sigmoid(x)."""
    share = sigmoid(xp, sums)
    return share * (1 + sums * (1 - share))  # type: ignore[no-any-return]  # xp is Any
