"""The transform's transpose along its axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.operators.dft import transform_of

HOST_INPUTS = (2, 3)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, data = required(inputs, 2)
    axis, transform = transform_of(data, optional(inputs, 2), optional(inputs, 3), attributes)
    wide = xp.moveaxis(gradient.astype(statistics_dtype(xp, data), copy=False), axis, -2)
    back = transform.transposed(xp, wide, xp.moveaxis(data, axis, -2).shape)
    return (xp.moveaxis(back, -2, axis).astype(data.dtype, copy=False),)
