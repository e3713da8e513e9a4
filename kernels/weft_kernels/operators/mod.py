"""What is left of a division, of the divisor's sign or the dividend's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    dividend, divisor = required(inputs)
    rest = context.xp.fmod if as_int(attributes["fmod"]) else context.xp.remainder
    return (rest(dividend, divisor).astype(dividend.dtype, copy=False),)
