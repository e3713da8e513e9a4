"""x * tanh(ln(exp(x) + 1)), without overflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.activations import tanh_of_softplus
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext

IN_FLOAT32 = ("float16", "bfloat16")


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    (x,) = required(inputs)
    return (x * tanh_of_softplus(xp, x),)
