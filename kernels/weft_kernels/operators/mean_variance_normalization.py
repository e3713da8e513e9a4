"""Elements along some axes less their mean, over their deviation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from weft_graph.attributes import as_ints
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.normalization.standardized_rows import centred_along

BESIDE: Final = 1e-9
"""Added to the deviation, so that what does not vary is 0: ONNX's number."""


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    (data,) = required(inputs)
    centred, deviation = centred_along(context.xp, data, as_ints(attributes["axes"]))
    return ((centred / (deviation + BESIDE)).astype(data.dtype, copy=False),)
