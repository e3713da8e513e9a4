"""The gradient times the product of the other elements: a single zero leaves one to itself alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.axes import reduction_axes, widened
from weft_kernels.kernel import Array, KernelContext

HOST_INPUTS = (2,)
IN_FLOAT32 = ("float16", "bfloat16")


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, data = required(inputs, 2)
    axes = reduction_axes(optional(inputs, 2), attributes, data.ndim)
    if not axes:
        return (gradient,)
    zero = data == 0
    apart = xp.where(zero, data.dtype.type(1), data)
    product = xp.prod(apart, axis=axes, keepdims=True, dtype=data.dtype)
    zeros = xp.sum(zero, axis=axes, keepdims=True)
    others = xp.where(zeros - zero == 0, product / apart, data.dtype.type(0))
    return (widened(gradient, axes, data.ndim) * others,)
