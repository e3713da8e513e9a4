"""Numbers at equal distances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_graph.shapes.ranges import range_length
from weft_kernels.arguments import required
from weft_kernels.element_types import computed_in
from weft_kernels.kernel import Array, KernelContext

HOST_INPUTS = (0, 1, 2)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    start, limit, delta = (array.reshape(-1)[0] for array in required(inputs))
    count = range_length(start.item(), limit.item(), delta.item())
    wide = computed_in(start.dtype)
    made = start.astype(wide) + xp.arange(count, dtype=wide) * delta.astype(wide)
    return (made.astype(start.dtype, copy=False),)
