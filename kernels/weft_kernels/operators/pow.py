"""Powers of two broadcast arrays, of the base's element type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.host import any_of
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    base, exponent = required(inputs)
    if base.dtype.kind == "f":
        # The exponent takes the base's type first: an int64 one would make NumPy compute a float32 power in float64.
        return (xp.power(base, exponent.astype(base.dtype, copy=False)),)
    if exponent.dtype.kind == "f" or any_of(xp, exponent < 0):
        # NumPy has no integer to a negative integer power.
        return (xp.power(base.astype(xp.float64), exponent).astype(base.dtype),)
    return (xp.power(base, exponent).astype(base.dtype, copy=False),)
