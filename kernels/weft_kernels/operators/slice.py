"""A view of every so many elements between two bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_graph.shapes.slicing import slices_of
from weft_kernels.arguments import optional, required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.lists import integers

HOST_INPUTS = (1, 2, 3, 4)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    (data,) = required(inputs, 1)
    starts, ends = (
        integers(optional(inputs, 1), attributes, "starts"),
        integers(optional(inputs, 2), attributes, "ends"),
    )
    axes, steps = integers(optional(inputs, 3), attributes, "axes"), integers(optional(inputs, 4), attributes, "steps")
    parts = slices_of(data.shape, starts or (), ends or (), axes, steps)
    return (data[parts],)
