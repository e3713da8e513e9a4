"""The product of bytes less their zero points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.quantization import by_operand, exact_product, less


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    left, right = required(inputs, 2)
    left_zero, right_zero = optional(inputs, 2), optional(inputs, 3)
    product = exact_product(
        xp,
        less(xp, left, None if left_zero is None else by_operand(left_zero, left.ndim, by_row=True)),
        less(xp, right, None if right_zero is None else by_operand(right_zero, right.ndim, by_row=False)),
    )
    return (product.astype(xp.int64).astype(xp.int32),)
