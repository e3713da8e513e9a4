"""Sums of products over labelled dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_str
from weft_graph.ir import AttributeValue
from weft_graph.shapes.einsum import parsed
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.products.contraction import contracted

IN_FLOAT32 = ()


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    arrays = required(inputs)
    equation = parsed(as_str(attributes["equation"]), [array.ndim for array in arrays])
    return (contracted(context.xp, equation, arrays),)
