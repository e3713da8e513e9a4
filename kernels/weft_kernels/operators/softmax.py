"""Softmax, and the losses of classes that are made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft_graph.attributes import as_int, as_str
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.shapes.broadcasting import normalised
from weft_kernels.arguments import optional, required
from weft_kernels.cuda import kernels as cuda
from weft_kernels.errors import OutOfRangeError
from weft_kernels.host import any_of, number
from weft_kernels.kernel import Array, Attributes, Inputs, KernelContext, Outputs, kernel

# --- Softmax and its logarithm along an axis, and what labels weigh in a loss -----------------------------------------


def log_softmax_along(xp: Any, scores: Array, axis: int, out: Array | None = None) -> Array:
    """ln softmax, in `out` or a new array; scores are shifted by their largest first, so that nothing overflows."""
    if scores.size == 0:
        return xp.empty_like(scores)  # type: ignore[no-any-return]  # xp is Any; max of none would raise
    shifted = xp.subtract(scores, scores.max(axis=axis, keepdims=True), out=out)
    shifted -= xp.log(xp.sum(xp.exp(shifted), axis=axis, keepdims=True, dtype=scores.dtype))
    return shifted  # type: ignore[no-any-return]  # xp is Any


def softmax_along(xp: Any, scores: Array, axis: int, out: Array | None = None) -> Array:
    """Softmax, in `out` or a new array; scores are shifted by their largest first, so that nothing overflows."""
    if scores.size == 0:
        return xp.empty_like(scores)  # type: ignore[no-any-return]  # xp is Any; max of none would raise
    raised = xp.subtract(scores, scores.max(axis=axis, keepdims=True), out=out)
    xp.exp(raised, out=raised)
    raised /= raised.sum(axis=axis, keepdims=True, dtype=scores.dtype)
    return raised  # type: ignore[no-any-return]  # xp is Any


def label_weights(
    xp: Any,
    labels: Array,
    classes: int,
    *,
    weights: Array | None,
    ignored: int | None,
    dtype: Any,
    checked: bool = False,
) -> tuple[Array, Array]:
    """(labels that can index, weight of each label): an ignored label points at class 0 and weighs nothing.

    Raises OutOfRangeError where a label that counts is outside [0, classes); a device is not waited for where the
    labels were `checked` before.
    """
    if cuda.cross_entropy_fits(xp, dtype, labels):
        weighed = cuda.label_weights(
            xp, labels, classes, weights=weights, ignored=ignored, dtype=dtype, checked=checked
        )
        return (labels if ignored is None else xp.where(labels == ignored, 0, labels)), weighed
    if weights is None and ignored is None and labels.size and xp is np:
        low, high = int(labels.min()), int(labels.max())
        if low >= 0 and high < classes:
            return labels, xp.ones(labels.shape, dtype)
    counted = xp.ones(labels.shape, dtype=bool) if ignored is None else labels != ignored
    wrong = counted & ((labels < 0) | (labels >= classes))
    if any_of(xp, wrong):
        raise OutOfRangeError("label", int(number(xp, labels[wrong][0])), 0, classes, of=", the classes of the scores")
    safe = xp.where(counted, labels, 0)
    if weights is None:
        return safe, counted.astype(dtype)
    return safe, xp.where(counted, weights[safe] if classes else 0, 0).astype(dtype, copy=False)


def ignored_label(attributes: Mapping[str, AttributeValue]) -> int | None:
    """The label that does not count, where the node names one."""
    return as_int(attributes["ignore_index"]) if "ignore_index" in attributes else None


def log_likelihoods(
    xp: Any,
    scores: Array,
    labels: Array,
    *,
    weights: Array | None,
    ignored: int | None,
    out: Array | None = None,
) -> tuple[Array, Array, Array]:
    """(ln softmax of the scores (batch, classes, ...), loss of each label, weight of each label); see `label_weights`.

    A label's loss is its negative log-likelihood times its weight. The first is written to `out`.
    """
    safe, weighed = label_weights(xp, labels, scores.shape[1], weights=weights, ignored=ignored, dtype=scores.dtype)
    if cuda.cross_entropy_fits(xp, scores.dtype, safe):
        return *cuda.cross_entropy(xp, scores, safe, weighed, out), weighed
    log_prob = log_softmax_along(xp, scores, axis=1, out=out)
    if log_prob.ndim == 2:
        likelihood = log_prob[xp.arange(len(safe)), safe]
    else:
        likelihood = xp.take_along_axis(log_prob, xp.expand_dims(safe, 1), axis=1)[:, 0]
    return log_prob, -likelihood * weighed, weighed


def scores_gradient(xp: Any, log_prob: Array, safe: Array, scale: Array, out: Array | None = None) -> Array:
    """scale * (softmax - one-hot label), like `log_prob`, in `out` or a new array; `scale` is like `safe`."""
    if cuda.cross_entropy_fits(xp, log_prob.dtype, safe):
        return cuda.cross_entropy_grad(xp, log_prob, safe, scale, out)
    result: Array = xp.exp(log_prob, out=out)
    scale, index = xp.expand_dims(scale, 1), xp.expand_dims(safe, 1)
    result *= scale
    xp.put_along_axis(result, index, xp.take_along_axis(result, index, axis=1) - scale, axis=1)
    return result


@kernel("Softmax", in_float32=("float16", "bfloat16"))
def softmax_(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Softmax along an axis."""
    (scores,) = required(inputs)
    return (softmax_along(context.xp, scores, as_int(attributes["axis"]), context.out(0, scores.dtype)),)


@kernel("SoftmaxGrad", domain=WEFT_DOMAIN, in_float32=("float16", "bfloat16"))
def softmax_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradient of softmax, from its output."""
    gradient, output = required(inputs)
    axis = as_int(attributes["axis"])
    weighted = gradient * output
    weighted -= output * context.xp.sum(weighted, axis=axis, keepdims=True, dtype=output.dtype)
    return (weighted,)


@kernel("LogSoftmax", in_float32=("float16", "bfloat16"))
def log_softmax_(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The logarithm of the softmax along an axis."""
    (scores,) = required(inputs)
    return (log_softmax_along(context.xp, scores, as_int(attributes["axis"]), context.out(0, scores.dtype)),)


@kernel("LogSoftmaxGrad", domain=WEFT_DOMAIN, in_float32=("float16", "bfloat16"))
def log_softmax_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradient of the logarithm of softmax, from its output."""
    xp = context.xp
    gradient, output = required(inputs)
    total = xp.sum(gradient, axis=as_int(attributes["axis"]), keepdims=True, dtype=output.dtype)
    return (gradient - xp.exp(output) * total,)


@kernel("Hardmax")
def hardmax(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """1 at the first largest element along an axis."""
    xp = context.xp
    (data,) = required(inputs)
    if data.size == 0:
        return (xp.zeros(data.shape, dtype=data.dtype),)
    axis = normalised(as_int(attributes["axis"]), data.ndim)
    first = xp.expand_dims(xp.argmax(data, axis=axis), axis)
    places = xp.arange(data.shape[axis]).reshape(-1, *(1,) * (data.ndim - 1 - axis))
    return ((places == first).astype(data.dtype),)


@kernel("NegativeLogLikelihoodLoss", in_float32=("float16", "bfloat16"), waits=True)
def negative_log_likelihood_loss(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Minus the input at each label, weighed."""
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


@kernel("NegativeLogLikelihoodLossGrad", domain=WEFT_DOMAIN, in_float32=("float16", "bfloat16"), waits=True)
def negative_log_likelihood_loss_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Minus each label's share of the gradient at the label, 0 elsewhere."""
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


@kernel("SoftmaxCrossEntropyLoss", in_float32=("bfloat16",), waits=True)
def softmax_cross_entropy_loss(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Mean, sum or each of the negative log-likelihoods of labels; also the log-probabilities themselves."""
    xp = context.xp
    scores, labels = required(inputs, 2)
    out, ignored = context.out(0, scores.dtype), ignored_label(attributes)
    log_prob, losses, weights = log_likelihoods(
        xp, scores, labels, weights=optional(inputs, 2), ignored=ignored, out=context.out(1, scores.dtype)
    )
    match as_str(attributes["reduction"]):
        case "none":
            loss = losses
        case "sum":
            loss = xp.sum(losses, dtype=scores.dtype, out=out)
        case _:
            total = xp.sum(losses, dtype=scores.dtype, out=out)
            loss = xp.divide(total, xp.sum(weights, dtype=scores.dtype), out=out)
    return loss, log_prob


@kernel("SoftmaxCrossEntropyLossGrad", domain=WEFT_DOMAIN, in_float32=("bfloat16",))
def softmax_cross_entropy_loss_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradient of the scores: softmax less the one-hot label, weighted and scaled as the loss was reduced."""
    xp = context.xp
    log_prob, labels = required(inputs[1:3])
    gradient = optional(inputs, 0)
    if gradient is None:
        result = xp.zeros_like(log_prob)
    else:
        safe, scale = label_weights(
            xp,
            labels,
            log_prob.shape[1],
            weights=optional(inputs, 3),
            ignored=ignored_label(attributes),
            dtype=log_prob.dtype,
            checked=True,  # by the loss, which made the log-probabilities
        )
        if as_str(attributes["reduction"]) == "mean":
            # Where every label is ignored the loss is 0 / 0, and its gradient is taken as 0: nothing is learnt from it.
            total = xp.sum(scale, dtype=scale.dtype)
            scale = scale / xp.where(total == 0, total.dtype.type(1), total)
        result = scores_gradient(xp, log_prob, safe, scale * gradient, context.out(0, log_prob.dtype))
    through = optional(inputs, 4)
    if through is not None:
        result += through - xp.exp(log_prob) * xp.sum(through, axis=1, keepdims=True, dtype=through.dtype)
    return (result,)
