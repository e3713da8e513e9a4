"""The slope of Mish, times the gradient."""

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
    gradient, x = required(inputs)
    level = tanh_of_softplus(xp, x)
    decayed = xp.exp(-xp.abs(x))
    sigmoid = xp.where(x >= 0, x.dtype.type(1), decayed) / (1 + decayed)
    return (gradient * (level + x * (1 - level * level) * sigmoid),)
