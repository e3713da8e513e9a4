"""Each element of every block: the gradient of the image where it lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_graph.shapes.blocks import blocks_of
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.windows.views import columns

HOST_INPUTS = (2, 3)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    gradient, data, image, block = required(inputs)
    windows = blocks_of(tuple(image.tolist()), tuple(block.tolist()), attributes.get)
    batch, rows, blocks = data.shape
    lowered = columns(context.xp, gradient, windows, 1)
    return (lowered.reshape(rows, batch, blocks).swapaxes(0, 1),)
