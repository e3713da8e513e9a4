"""Powers of two broadcast arrays, of the base's element type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.element_types import computed_in, is_float
from weft_kernels.host import any_of
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    base, exponent = required(inputs)
    if is_float(base.dtype):
        # The exponent takes the base's type first: an int64 one would make NumPy compute a float32 power in float64.
        wide = computed_in(base.dtype)
        result = xp.power(base.astype(wide, copy=False), exponent.astype(wide, copy=False))
        return (result.astype(base.dtype, copy=False),)
    if is_float(exponent.dtype) or any_of(xp, exponent < 0):
        # NumPy has no integer to a negative integer power.
        return (xp.power(base.astype(xp.float64), exponent).astype(base.dtype),)
    return (xp.power(base, exponent).astype(base.dtype, copy=False),)
