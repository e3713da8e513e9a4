"""A view with its dimensions in another order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_ints
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    (data,) = required(inputs)
    return (data.transpose(as_ints(attributes["perm"]) if "perm" in attributes else None),)
