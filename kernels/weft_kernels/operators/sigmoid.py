"""The logistic function, without overflow on either side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext

IN_FLOAT32 = ("float16", "bfloat16")


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    (x,) = required(inputs)
    # With e = exp(-|x|) in (0, 1]: 1 / (1 + e) for x >= 0, and e / (1 + e) below.
    decayed = xp.exp(-xp.abs(x))
    return (xp.where(x >= 0, x.dtype.type(1), decayed) / (1 + decayed),)
