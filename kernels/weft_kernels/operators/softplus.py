"""ln(exp(x) + 1), of whose two terms the larger one leads, so that nothing overflows."""

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
    return (xp.maximum(x, x.dtype.type(0)) + xp.log1p(xp.exp(-xp.abs(x))),)
