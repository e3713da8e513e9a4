"""Channels in another order of dimensions, and so beside height and width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    (data,) = required(inputs)
    side = as_int(attributes["blocksize"])
    batch, channels, high, wide = data.shape
    depth = channels // (side * side)
    if attributes["mode"] == "DCR":
        blocks = data.reshape(batch, side, side, depth, high, wide).transpose(0, 3, 4, 1, 5, 2)
    else:
        blocks = data.reshape(batch, depth, side, side, high, wide).transpose(0, 1, 4, 2, 5, 3)
    return (blocks.reshape(batch, depth, high * side, wide * side),)
