"""Elements dropped by counter-based draws, the rest scaled; also the mask of those kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.dropout import kept, ratio_in_force
from weft_kernels.kernel import Array, KernelContext

HOST_INPUTS = (1, 2)
IN_FLOAT32 = ("float16", "bfloat16")


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    (data,) = required(inputs, 1)
    ratio = ratio_in_force(optional(inputs, 1), optional(inputs, 2))
    if ratio == 0:
        return data, xp.ones(data.shape, dtype=bool)
    mask = kept(context, data, ratio, as_int(attributes["seed"]) if "seed" in attributes else None)
    return data * mask * data.dtype.type(1 / (1 - ratio)), mask
