"""Mean, sum or each of the negative log-likelihoods of labels; also the log-probabilities themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_str
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.softmax import ignored_label, log_likelihoods

IN_FLOAT32 = ("bfloat16",)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    scores, labels = required(inputs, 2)
    log_prob, losses, weights = log_likelihoods(
        xp, scores, labels, weights=optional(inputs, 2), ignored=ignored_label(attributes)
    )
    match as_str(attributes["reduction"]):
        case "none":
            loss = losses
        case "sum":
            loss = xp.sum(losses, dtype=scores.dtype)
        case _:
            loss = xp.sum(losses, dtype=scores.dtype) / xp.sum(weights, dtype=scores.dtype)
    return loss, log_prob
