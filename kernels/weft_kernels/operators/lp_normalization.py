"""The data over its norm along an axis; 0 where that is 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array, KernelContext

IN_FLOAT32 = ("float16", "bfloat16")


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    (data,) = required(inputs)
    wide = data.astype(statistics_dtype(xp, data), copy=False)
    powers = xp.square(wide) if as_int(attributes["p"]) == 2 else xp.abs(wide)
    norm = xp.sum(powers, axis=as_int(attributes["axis"]), keepdims=True, dtype=wide.dtype)
    norm = xp.sqrt(norm) if as_int(attributes["p"]) == 2 else norm
    return ((wide / xp.where(norm == 0, norm.dtype.type(1), norm)).astype(data.dtype, copy=False),)
