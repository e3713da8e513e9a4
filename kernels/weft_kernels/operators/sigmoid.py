"""The logistic function, without overflow on either side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.activations import logistic
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext

IN_FLOAT32 = ("float16", "bfloat16")


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    (x,) = required(inputs)
    return (logistic(context.xp, x),)
