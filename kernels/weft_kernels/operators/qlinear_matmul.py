"""The product of quantized matrices, quantized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_graph.types import DType
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.quantization import by_operand, exact_product, less, quantized


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    left, left_scale, left_zero, right, right_scale, right_zero, scale, zero_point = required(inputs)
    product = exact_product(
        xp,
        less(xp, left, by_operand(left_zero, left.ndim, by_row=True)),
        less(xp, right, by_operand(right_zero, right.ndim, by_row=False)),
    )
    by_row = by_operand(left_scale, left.ndim, by_row=True).astype(xp.float64)
    by_column = by_operand(right_scale, right.ndim, by_row=False).astype(xp.float64)
    ratio = product * by_row * by_column / scale.astype(xp.float64).reshape(())
    return (quantized(xp, ratio, zero_point.reshape(()), DType(zero_point.dtype.name)),)
