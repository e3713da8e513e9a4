"""Gradient of the scores: softmax less the one-hot label, weighted and scaled as the loss was reduced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_str
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.softmax import ignored_label, label_weights, scores_gradient

IN_FLOAT32 = ("bfloat16",)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    log_prob, labels = required(inputs[1:3])
    result = xp.zeros_like(log_prob)
    gradient = optional(inputs, 0)
    if gradient is not None:
        safe, scale = label_weights(
            xp,
            labels,
            log_prob.shape[1],
            weights=optional(inputs, 3),
            ignored=ignored_label(attributes),
            dtype=log_prob.dtype,
        )
        if as_str(attributes["reduction"]) == "mean":
            # Where every label is ignored the loss is 0 / 0, and its gradient is taken as 0: nothing is learnt from it.
            total = xp.sum(scale, dtype=scale.dtype)
            scale = scale / xp.where(total == 0, total.dtype.type(1), total)
        result = scores_gradient(xp, log_prob, safe, scale * gradient)
    through = optional(inputs, 4)
    if through is not None:
        result += through - xp.exp(log_prob) * xp.sum(through, axis=1, keepdims=True, dtype=through.dtype)
    return (result,)
