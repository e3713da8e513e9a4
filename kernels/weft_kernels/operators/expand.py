"""A view in which dimensions of 1 are repeated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_graph.shapes.broadcasting import broadcast
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext

HOST_INPUTS = (1,)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    data, target = required(inputs)
    shape = broadcast(data.shape, tuple(target.tolist()))
    return (context.xp.broadcast_to(data, shape),)
