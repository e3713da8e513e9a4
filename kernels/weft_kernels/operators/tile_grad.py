"""The sum of all copies' gradients."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext

IN_FLOAT32 = ("float16", "bfloat16")


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    gradient, data = required(inputs)
    if data.size == 0:
        return (context.xp.zeros(data.shape, dtype=gradient.dtype),)
    copies = [(whole // size, size) for whole, size in zip(gradient.shape, data.shape, strict=True)]
    apart = gradient.reshape(tuple(itertools.chain.from_iterable(copies)))
    return (context.xp.sum(apart, axis=tuple(range(0, 2 * data.ndim, 2)), dtype=gradient.dtype),)
