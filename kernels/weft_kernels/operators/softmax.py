"""Softmax, and the losses of classes that are made of it."""

from __future__ import annotations

from weft_graph.attributes import as_int, as_str
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.shapes.broadcasting import normalised
from weft_kernels.arguments import optional, required
from weft_kernels.kernel import Attributes, Inputs, KernelContext, Outputs, kernel
from weft_kernels.softmax import ignored_label, label_weights, log_likelihoods, log_softmax, scores_gradient, softmax


@kernel("Softmax", in_float32=("float16", "bfloat16"))
def softmax_(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Softmax along an axis."""
    (scores,) = required(inputs)
    return (softmax(context.xp, scores, as_int(attributes["axis"]), context.out(0, scores.dtype)),)


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
    return (log_softmax(context.xp, scores, as_int(attributes["axis"])),)


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


@kernel("NegativeLogLikelihoodLoss", in_float32=("float16", "bfloat16"))
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


@kernel("NegativeLogLikelihoodLossGrad", domain=WEFT_DOMAIN, in_float32=("float16", "bfloat16"))
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


@kernel("SoftmaxCrossEntropyLoss", in_float32=("bfloat16",))
def softmax_cross_entropy_loss(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Mean, sum or each of the negative log-likelihoods of labels; also the log-probabilities themselves."""
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


@kernel("SoftmaxCrossEntropyLossGrad", domain=WEFT_DOMAIN, in_float32=("bfloat16",))
def softmax_cross_entropy_loss_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradient of the scores: softmax less the one-hot label, weighted and scaled as the loss was reduced."""
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
