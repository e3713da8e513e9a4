"""Mean, sum or each of the negative log-likelihoods of labels; also the log-probabilities themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int, as_str
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.softmax import label_weights, log_softmax


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    scores, labels = required(inputs, 2)
    log_prob = log_softmax(xp, scores, axis=1)
    ignored = as_int(attributes["ignore_index"]) if "ignore_index" in attributes else None
    safe, weights = label_weights(
        xp, labels, scores.shape[1], weights=optional(inputs, 2), ignored=ignored, dtype=scores.dtype
    )
    likelihood = xp.take_along_axis(log_prob, xp.expand_dims(safe, 1), axis=1)[:, 0]
    losses = -likelihood * weights
    match as_str(attributes["reduction"]):
        case "none":
            loss = losses
        case "sum":
            loss = xp.sum(losses, dtype=scores.dtype)
        case _:
            loss = xp.sum(losses, dtype=scores.dtype) / xp.sum(weights, dtype=scores.dtype)
    return loss, log_prob
