"""Every element of the result a sum of a few, one dimension after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_float
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.sampling.interpolation import interpolated
from weft_kernels.sampling.resizing import interpolation, outside, resized_dimensions

HOST_INPUTS = (1, 2, 3)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    (data,) = required(inputs, 1)
    dimensions = resized_dimensions(data.shape, inputs[1:], attributes)
    result = data if attributes["mode"] == "nearest" else data.astype(statistics_dtype(xp, data), copy=False)
    for along in dimensions:
        result = interpolated(xp, result, along.axis, interpolation(along, attributes))
    for along in dimensions:
        beyond = outside(along, attributes)
        if beyond.size:
            result = result.copy() if result is data else result
            result[(*(slice(None),) * along.axis, xp.asarray(beyond))] = as_float(attributes["extrapolation_value"])
    return (result.astype(data.dtype, copy=False),)
