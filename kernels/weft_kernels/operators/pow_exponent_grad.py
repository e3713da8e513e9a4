"""Gradient of the exponent of a power."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.element_types import computed_in
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, base, exponent, output = required(inputs)
    base = base.astype(computed_in(base.dtype), copy=False)
    logarithm = xp.log(xp.where(base == 0, base.dtype.type(1), base))
    return ((gradient * (output * logarithm)).astype(exponent.dtype, copy=False),)
