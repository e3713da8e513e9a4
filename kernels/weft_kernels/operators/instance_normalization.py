"""Each sample's channels standardized, then scaled and shifted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_float
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.normalization.standardized_rows import normalized_groups


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    data, scale, bias = required(inputs)
    epsilon = as_float(attributes["epsilon"])
    return (normalized_groups(context.xp, data, scale, bias, groups=data.shape[1], epsilon=epsilon),)
