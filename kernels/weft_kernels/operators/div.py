"""Quotient of two broadcast arrays; integers are divided towards zero, as in C."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.element_types import is_float
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    dividend, divisor = required(inputs)
    if is_float(dividend.dtype):
        return (xp.divide(dividend, divisor),)
    quotient = xp.floor_divide(dividend, divisor)
    if dividend.dtype.kind == "i":
        # floor_divide rounds down: one too low where the signs differ and something is left over.
        inexact = xp.multiply(quotient, divisor) != dividend
        quotient = quotient + (inexact & ((dividend < 0) != (divisor < 0)))
    return (quotient.astype(dividend.dtype, copy=False),)
