"""What each element has of its own response, less its part in the responses around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_float, as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.windows.channels import channel_sums, response_base

IN_FLOAT32 = ("float16", "bfloat16")


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, data = required(inputs)
    alpha, beta, size = as_float(attributes["alpha"]), as_float(attributes["beta"]), as_int(attributes["size"])
    base = response_base(xp, data, attributes)
    own = gradient * base**-beta
    # The windows that hold a channel lie around it as its own window does, mirrored.
    around = channel_sums(xp, own * data / base, before=size // 2, after=(size - 1) // 2)
    return ((own - 2 * alpha * beta / size * data * around).astype(data.dtype, copy=False),)
