"""Each element over a power of the mean square of the channels around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_float
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.windows.channels import response_base

IN_FLOAT32 = ("float16", "bfloat16")


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    (data,) = required(inputs)
    base = response_base(xp, data, attributes)
    return ((data * base ** -as_float(attributes["beta"])).astype(data.dtype, copy=False),)
