"""Gradient of the base of a power."""

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
    gradient, base, exponent = required(inputs)
    narrow, wide = base.dtype, computed_in(base.dtype)
    base, exponent = base.astype(wide, copy=False), exponent.astype(wide, copy=False)
    # Where the exponent is 0 the power is 1 everywhere: no slope, although base^-1 may be infinite.
    lower = xp.where(exponent == 0, base.dtype.type(1), exponent - 1)
    return ((gradient * (exponent * xp.power(base, lower))).astype(narrow, copy=False),)
