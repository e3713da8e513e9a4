"""The general matrix product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_float, as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.kernel import Array, KernelContext

IN_FLOAT32 = ()


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    left, right = required(inputs, 2)
    bias = optional(inputs, 2)
    alpha, beta = as_float(attributes["alpha"]), as_float(attributes["beta"])
    result = context.xp.matmul(
        left.T if as_int(attributes["transA"]) else left,
        right.T if as_int(attributes["transB"]) else right,
        out=context.out(0, left.dtype) if alpha == 1 else None,
    )
    # The product is this kernel's own, so that what follows may write it. Integers are scaled as floats, then cut.
    if alpha != 1:
        result = _scaled(result, alpha)
    if bias is not None and beta != 0:
        result += bias if beta == 1 else _scaled(bias, beta)
    return (result,)


def _scaled(array: Array, factor: float) -> Array:
    return (array * factor).astype(array.dtype, copy=False)
