"""Gradient of the right operand of a matrix product: left, transposed, times gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.products.matrix import as_matrices, flat_rows, sum_stack

IN_FLOAT32 = ()


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    gradient, left, right = required(inputs)
    wide_gradient, wide_left, wide_right = as_matrices(gradient, left, right)
    if wide_right.ndim == 2:
        # One matrix for the whole stack: its rows join the sum, so no stack of products is ever made.
        product = context.xp.matmul(flat_rows(wide_left).T, flat_rows(wide_gradient))
    else:
        product = context.xp.matmul(wide_left.swapaxes(-1, -2), wide_gradient)
    return (sum_stack(context.xp, product, wide_right.shape).reshape(right.shape),)
