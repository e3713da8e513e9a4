"""Whether it is infinite, of the signs that are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    (x,) = required(inputs)
    negative, positive = bool(as_int(attributes["detect_negative"])), bool(as_int(attributes["detect_positive"]))
    return (xp.isinf(x) & xp.where(x > 0, positive, negative),)
