"""The root of the sum of powers over all spatial dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.norms import powered, root


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    (data,) = required(inputs)
    p = as_int(attributes["p"])
    powers = powered(xp, data.astype(statistics_dtype(xp, data), copy=False), p)
    total = xp.sum(powers, axis=tuple(range(2, data.ndim)), keepdims=True)
    return (root(xp, total, p).astype(data.dtype, copy=False),)
