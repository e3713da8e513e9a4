"""Y = `alpha` * X + `beta`, within 0 and 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_float
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext

IN_FLOAT32 = ("float16", "bfloat16")


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    (x,) = required(inputs)
    alpha, beta = as_float(attributes["alpha"]), as_float(attributes["beta"])
    line = x * x.dtype.type(alpha) + x.dtype.type(beta)
    return (xp.clip(line, x.dtype.type(0), x.dtype.type(1)),)
