"""Places of the elements that are not zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    (data,) = required(inputs)
    if data.ndim == 0:
        return (xp.zeros((0, xp.flatnonzero(data).size), dtype=xp.int64),)
    return (xp.stack(xp.nonzero(data)).astype(xp.int64, copy=False),)
