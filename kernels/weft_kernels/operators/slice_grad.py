"""The gradient where elements were taken from, 0 elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_graph.shapes.slicing import slices_of
from weft_kernels.arguments import optional, required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.lists import integers

HOST_INPUTS = (2, 3, 4, 5)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    gradient, data = required(inputs, 2)
    starts, ends = (
        integers(optional(inputs, 2), attributes, "starts"),
        integers(optional(inputs, 3), attributes, "ends"),
    )
    axes, steps = integers(optional(inputs, 4), attributes, "axes"), integers(optional(inputs, 5), attributes, "steps")
    parts = slices_of(data.shape, starts or (), ends or (), axes, steps)
    result = context.xp.zeros(data.shape, dtype=gradient.dtype)
    result[parts] = gradient
    return (result,)
