"""A causal convolution of each channel by itself: what CausalConvWithState and its gradient share."""

from __future__ import annotations

from typing import Any

from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array


def with_state(xp: Any, data: Array, past: Array | None, width: int) -> Array:
    """(batch, channels, width - 1 + length): the state, or zeros, before the input; float32 at least."""
    wide = statistics_dtype(xp, data)
    before = xp.zeros((*data.shape[:2], width - 1), dtype=wide) if past is None else past.astype(wide, copy=False)
    return xp.concatenate((before, data.astype(wide, copy=False)), axis=2)  # type: ignore[no-any-return]  # xp is Any


def convolved(xp: Any, padded: Array, weight: Array, bias: Array | None) -> Array:
    """The sums over the kernel's width, (batch, channels, length); `padded` is of `with_state`."""
    width = weight.shape[2]
    length = padded.shape[2] - width + 1
    result = xp.zeros((*padded.shape[:2], length), dtype=padded.dtype)
    for place in range(width):
        result += padded[:, :, place : place + length] * weight[:, :, place]
    if bias is not None:
        result += bias[:, None]
    return result  # type: ignore[no-any-return]  # xp is Any


def sigmoid(xp: Any, x: Array) -> Array:
    """1 / (1 + e^-x)."""
    return (xp.tanh(x * 0.5) + 1) * 0.5  # type: ignore[no-any-return]  # xp is Any
