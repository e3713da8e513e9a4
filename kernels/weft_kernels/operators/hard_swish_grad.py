"""The slope of HardSwish, times the gradient."""

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
    gradient, x = required(inputs)
    slope = xp.where(x <= -3, x.dtype.type(0), xp.where(x >= 3, x.dtype.type(1), x / 3 + x.dtype.type(0.5)))
    return (gradient * slope,)
