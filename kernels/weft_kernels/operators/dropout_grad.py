"""The gradient of the elements that were kept, scaled as they were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.dropout import ratio_in_force
from weft_kernels.kernel import Array, KernelContext

HOST_INPUTS = (2, 3)
IN_FLOAT32 = ("float16", "bfloat16")


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    gradient, mask = required(inputs, 2)
    ratio = ratio_in_force(optional(inputs, 2), optional(inputs, 3))
    if ratio == 0:
        return (gradient,)
    return (gradient * mask * gradient.dtype.type(1 / (1 - ratio)),)
