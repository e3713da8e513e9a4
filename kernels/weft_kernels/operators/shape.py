"""The dimensions as a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    (data,) = required(inputs)
    end = as_int(attributes["end"]) if "end" in attributes else None
    return (context.xp.asarray(data.shape[as_int(attributes["start"]) : end], dtype=context.xp.int64),)
