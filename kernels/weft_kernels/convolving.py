"""Convolutions as one matrix product for each group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.windows import windows_of
from weft_kernels.kernel import Array
from weft_kernels.windows import columns


def convolved(xp: Any, data: Array, weights: Array, attributes: Mapping[str, AttributeValue]) -> Array:
    """The convolution of data (batch, channels, ...), whole numbers too: a new array (batch, features, windows ...)."""
    group, features = as_int(attributes["group"]), weights.shape[0]
    windows = windows_of(data.shape[2:], attributes.get, weights.shape[2:])
    lowered = columns(xp, data, windows, group)
    product = xp.matmul(weights.reshape(group, features // group, lowered.shape[1]), lowered)
    return product.reshape(features, data.shape[0], *windows.count).swapaxes(0, 1)  # type: ignore[no-any-return]  # xp is Any
