"""Minus the input at each label, weighed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int, as_str
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.softmax import label_weights

IN_FLOAT32 = ("float16", "bfloat16")


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    scores, labels = required(inputs, 2)
    ignored = as_int(attributes["ignore_index"]) if "ignore_index" in attributes else None
    safe, weights = label_weights(
        xp, labels, scores.shape[1], weights=optional(inputs, 2), ignored=ignored, dtype=scores.dtype
    )
    losses = -xp.take_along_axis(scores, xp.expand_dims(safe, 1), axis=1)[:, 0] * weights
    match as_str(attributes["reduction"]):
        case "none":
            return (losses,)
        case "sum":
            return (xp.sum(losses, dtype=scores.dtype),)
        case _:
            return (xp.sum(losses, dtype=scores.dtype) / xp.sum(weights, dtype=scores.dtype),)
