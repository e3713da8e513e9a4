"""Cofactors, from singular values: with X = U diag(s) V they are det(UV) U diag(products of the others) V."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.products.running import products_before

IN_FLOAT32 = ("float16", "bfloat16")


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, data = required(inputs)
    left, values, right = xp.linalg.svd(data)
    by_value = values.swapaxes(0, -1)
    others = products_before(xp, by_value) * products_before(xp, by_value[::-1])[::-1]
    sign = xp.linalg.det(left) * xp.linalg.det(right)
    cofactors = xp.matmul(left * others.swapaxes(0, -1)[..., None, :], right)
    return ((gradient * sign)[..., None, None] * cofactors,)
