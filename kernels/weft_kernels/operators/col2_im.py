"""The elements of all blocks, added up where they lie."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_graph.shapes.blocks import blocks_of
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.windows.views import scattered

HOST_INPUTS = (1, 2)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    data, image, block = required(inputs)
    windows = blocks_of(tuple(image.tolist()), tuple(block.tolist()), attributes.get)
    batch, rows, blocks = data.shape
    places = math.prod(windows.kernel)
    if rows % places or blocks != math.prod(windows.count):
        raise ValueError(f"{rows} x {blocks} are not {places} places of {math.prod(windows.count)} blocks")
    shape = (rows // places, *windows.kernel, batch, *windows.count)
    return (scattered(context.xp, data.swapaxes(0, 1).reshape(shape), windows),)
