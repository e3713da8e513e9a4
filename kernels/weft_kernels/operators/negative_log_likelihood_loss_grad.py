"""Minus each label's share of the gradient at the label, 0 elsewhere."""

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
    gradient, scores, labels = required(inputs, 3)
    ignored = as_int(attributes["ignore_index"]) if "ignore_index" in attributes else None
    safe, scale = label_weights(
        xp, labels, scores.shape[1], weights=optional(inputs, 3), ignored=ignored, dtype=scores.dtype
    )
    if as_str(attributes["reduction"]) == "mean":
        # Where every label is ignored the loss is 0 / 0, and its gradient is taken as 0: nothing is learnt from it.
        total = xp.sum(scale, dtype=scale.dtype)
        scale = scale / xp.where(total == 0, total.dtype.type(1), total)
    classes = xp.arange(scores.shape[1]).reshape(-1, *(1,) * (scores.ndim - 2))
    chosen = xp.expand_dims(safe, 1) == classes
    return (xp.where(chosen, -xp.expand_dims(scale * gradient, 1), scores.dtype.type(0)),)
