"""Y = `gamma` * X, where it is not above 0 `gamma` * `alpha` * (exp(X) - 1)."""

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
    alpha, gamma = as_float(attributes["alpha"]), as_float(attributes["gamma"])
    low = alpha * xp.expm1(xp.minimum(x, x.dtype.type(0)))
    return (gamma * xp.where(x > 0, x, low),)
