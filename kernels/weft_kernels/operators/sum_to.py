"""Sum over the dimensions along which a shape was broadcast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext

IN_FLOAT32 = ("float16", "bfloat16")


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    data, like = required(inputs)
    lead = data.ndim - like.ndim
    stretched = (axis + lead for axis in range(like.ndim) if like.shape[axis] != data.shape[axis + lead])
    axes = (*range(lead), *stretched)
    if not axes:
        return (data,)
    return (context.xp.sum(data, axis=axes, dtype=data.dtype).reshape(like.shape),)
