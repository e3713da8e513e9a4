"""Zeros with the gradient in a diagonal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_str
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, operand = required(inputs)
    labels = as_str(attributes["labels"])
    once = "".join(dict.fromkeys(labels))
    # One index for each letter, along its own dimension: dimensions that share a letter are walked together.
    index = {
        label: xp.arange(size).reshape(-1, *(1,) * (len(once) - 1 - axis))
        for axis, (label, size) in enumerate(zip(once, gradient.shape, strict=True))
    }
    result = xp.zeros(operand.shape, dtype=gradient.dtype)
    result[tuple(index[label] for label in labels)] = gradient
    return (result,)
