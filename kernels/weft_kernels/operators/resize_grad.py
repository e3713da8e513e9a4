"""The transpose of Resize: each gradient goes to the elements that its own was made of, with their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.sampling.interpolation import interpolated
from weft_kernels.sampling.resizing import interpolation, outside, resized_dimensions

HOST_INPUTS = (2, 3, 4)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, data = required(inputs, 2)
    dimensions = resized_dimensions(data.shape, inputs[2:], attributes)
    result = gradient.astype(statistics_dtype(xp, data), copy=False)
    for along in dimensions:
        beyond = outside(along, attributes)
        if beyond.size:
            result = result.copy() if result is gradient else result
            result[(*(slice(None),) * along.axis, xp.asarray(beyond))] = 0
    for along in reversed(dimensions):
        result = interpolated(xp, result, along.axis, interpolation(along, attributes).transposed)
    return (result.astype(data.dtype, copy=False),)
