"""x, not below one bound, then not above the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_float
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    (x,) = required(inputs, 1)
    for index, name, limit in ((1, "min", xp.maximum), (2, "max", xp.minimum)):
        bound = optional(inputs, index)
        if bound is not None:
            x = limit(x, bound)
        elif name in attributes:
            x = limit(x, x.dtype.type(as_float(attributes[name])))
    return (x,)
