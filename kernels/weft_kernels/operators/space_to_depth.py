"""The places of each block in another order of dimensions, and so beside the channels."""

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
    batch, depth, high, wide = data.shape
    blocks = data.reshape(batch, depth, high // side, side, wide // side, side)
    order = (0, 3, 5, 1, 2, 4) if attributes["mode"] == "DCR" else (0, 1, 3, 5, 2, 4)
    return (blocks.transpose(order).reshape(batch, depth * side * side, high // side, wide // side),)
