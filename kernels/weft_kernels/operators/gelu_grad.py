"""The slope of Gelu, times the gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_str
from weft_graph.ir import AttributeValue
from weft_kernels.activations import normal_below, normal_density
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext

IN_FLOAT32 = ("float16", "bfloat16")


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, x = required(inputs)
    approximate = as_str(attributes["approximate"])
    below, density = normal_below(xp, x, approximate), normal_density(xp, x, approximate)
    return (gradient * (below + x * density),)
