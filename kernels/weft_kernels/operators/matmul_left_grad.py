"""Gradient of the left operand of a matrix product: gradient times right, transposed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.products.matrix import as_matrices, sum_stack

IN_FLOAT32 = ()


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    gradient, left, right = required(inputs)
    wide_gradient, wide_left, wide_right = as_matrices(gradient, left, right)
    product = context.xp.matmul(wide_gradient, wide_right.swapaxes(-1, -2))
    return (sum_stack(context.xp, product, wide_left.shape).reshape(left.shape),)
