"""Copies one after the other along each dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext

HOST_INPUTS = (1,)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    data, repeats = required(inputs)
    return (context.xp.tile(data, tuple(repeats.tolist())),)
