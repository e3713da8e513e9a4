"""The gradient of each element, where it was put."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_graph.shapes.unpooling import unpooled
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, indices = required(inputs)
    shape = (*indices.shape[:2], *unpooled(indices.shape[2:], attributes.get))
    natural = gradient[tuple(slice(length) for length in shape)]
    return (xp.take(natural.reshape(-1), indices),)
