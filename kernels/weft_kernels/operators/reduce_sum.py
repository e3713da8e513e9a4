"""The sum over axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.axes import reduction_axes
from weft_kernels.kernel import Array, KernelContext

HOST_INPUTS = (1,)
IN_FLOAT32 = ("float16", "bfloat16")


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    (data,) = required(inputs, 1)
    axes = reduction_axes(optional(inputs, 1), attributes, data.ndim)
    if not axes:
        return (data,)
    keepdims = bool(as_int(attributes["keepdims"]))
    return (context.xp.sum(data, axis=axes, keepdims=keepdims, dtype=data.dtype),)
