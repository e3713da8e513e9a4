"""Softmax, and the losses of classes that are made of it."""

from __future__ import annotations

from weft_graph.attributes import as_int, as_str
from weft_graph.dimensions import agree_all
from weft_graph.formals import FLOATS, INDICES, optional, required, setting
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.broadcasting import check_same_dtype, infer_axis, infer_like, infer_unary
from weft_graph.shapes.flops import normalized, reduced
from weft_graph.shapes.gradients import flat, given_attributes, incoming, refusal
from weft_graph.types import Shape, TensorType

_AXIS = {"axis": Attribute(int, default=-1)}


def _infer_along_axis(context: InferContext) -> tuple[TensorType, ...]:
    infer_axis(context, context.input(0).rank)
    return (context.input(0),)


def _with_gradient(op_type: str) -> tuple[OpSchema, OpSchema]:
    """An operator along `axis`, and its gradient, which reads the output."""

    def gradient(context: GradientContext) -> tuple[str | None, ...]:
        attributes = {"axis": as_int(context.attribute("axis"))}
        return context.emit(f"{op_type}Grad", (incoming(context), context.output(0)), attributes, domain=WEFT_DOMAIN)

    forward = OpSchema(
        op_type=op_type,
        inputs=(required("input", FLOATS),),
        outputs=(required("output", FLOATS),),
        infer=_infer_along_axis,
        gradient=gradient,
        attributes=_AXIS,
        flops=normalized,
        in_place=(0,),
    )
    backward = OpSchema(
        op_type=f"{op_type}Grad",
        inputs=(required("gradient", FLOATS), required("output", FLOATS)),
        outputs=(required("input_gradient", FLOATS),),
        infer=infer_unary,
        attributes=_AXIS,
        domain=WEFT_DOMAIN,
        in_place=(0, 1),
    )
    return forward, backward


SOFTMAX, SOFTMAX_GRAD = _with_gradient("Softmax")
"""Softmax: e^x over its sum along `axis`; SoftmaxGrad(gradient, output): output * (gradient - sum(gradient * output)).
"""


LOG_SOFTMAX, LOG_SOFTMAX_GRAD = _with_gradient("LogSoftmax")
"""LogSoftmax: the logarithm of the softmax along `axis`; LogSoftmaxGrad(gradient, output): gradient - e^output *
sum(gradient)."""


HARDMAX = OpSchema(
    op_type="Hardmax",
    inputs=(required("input", FLOATS),),
    outputs=(required("output", FLOATS),),
    infer=_infer_along_axis,
    gradient=flat,
    attributes=_AXIS,
    flops=reduced,
)
"""Hardmax: 1 at the first largest element along `axis`, 0 elsewhere."""


_NEGATIVE_LOG_LIKELIHOOD_LOSS_REDUCTIONS = ("mean", "sum", "none")


def _infer_negative_log_likelihood_loss(context: InferContext) -> tuple[TensorType, ...]:
    scores, labels, weights = context.input(0), context.input(1), context.optional_input(2)
    if scores.rank < 2:
        raise context.shape_error(f"the input must be (batch, classes, ...), got {scores}")
    expected: Shape = (scores.shape[0], *scores.shape[2:])
    if not agree_all(labels.shape, expected):
        raise context.shape_error(f"target {labels} does not fit input {scores}: its shape must be {expected}")
    if weights is not None:
        check_same_dtype(context, 0, 2)
        if not agree_all(weights.shape, scores.shape[1:2]):
            raise context.shape_error(f"weight {weights} must have one number for each class of {scores}")
    reduction = as_str(context.attribute("reduction"))
    if reduction not in _NEGATIVE_LOG_LIKELIHOOD_LOSS_REDUCTIONS:
        raise context.shape_error(
            f"reduction {reduction!r} is none of {', '.join(_NEGATIVE_LOG_LIKELIHOOD_LOSS_REDUCTIONS)}"
        )
    return (TensorType(scores.dtype, expected if reduction == "none" else ()),)


def _negative_log_likelihood_loss_gradient(context: GradientContext) -> tuple[str | None, ...]:
    if context.needs(2):
        raise refusal(context, "class weights have no gradient; they must not depend on a trainable parameter")
    inputs = (incoming(context), *context.node.inputs)
    attributes = given_attributes(context, ("ignore_index", "reduction"))
    (scores,) = context.emit("NegativeLogLikelihoodLossGrad", inputs, attributes, domain=WEFT_DOMAIN)
    return (scores, None, None)[: len(context.node.inputs)]


NEGATIVE_LOG_LIKELIHOOD_LOSS = OpSchema(
    op_type="NegativeLogLikelihoodLoss",
    inputs=(required("input", FLOATS), required("target", INDICES), setting(optional("weight", FLOATS))),
    outputs=(required("loss", FLOATS),),
    infer=_infer_negative_log_likelihood_loss,
    gradient=_negative_log_likelihood_loss_gradient,
    attributes={"ignore_index": Attribute(int), "reduction": Attribute(str, default="mean")},
    flops=reduced,
)
"""NegativeLogLikelihoodLoss: minus the input at each label along axis 1, weighed.

Summed, their mean, or as they are.
"""


NEGATIVE_LOG_LIKELIHOOD_LOSS_GRAD = OpSchema(
    op_type="NegativeLogLikelihoodLossGrad",
    inputs=(
        required("gradient", FLOATS),
        required("input", FLOATS),
        required("target", INDICES),
        optional("weight", FLOATS),
    ),
    outputs=(required("input_gradient", FLOATS),),
    infer=infer_like(1),
    attributes={"ignore_index": Attribute(int), "reduction": Attribute(str, default="mean")},
    domain=WEFT_DOMAIN,
)
"""NegativeLogLikelihoodLossGrad(gradient, input, target, weight): minus each label's weight at the label, 0 elsewhere.

Times the gradient, and over the sum of weights for a mean; the attributes are the loss's.
"""


def _infer_softmax_cross_entropy_loss(context: InferContext) -> tuple[TensorType, ...]:
    scores, labels, weights = context.input(0), context.input(1), context.optional_input(2)
    if scores.rank < 2:
        raise context.shape_error(f"scores must be (batch, classes, ...), got {scores}")
    expected: Shape = (scores.shape[0], *scores.shape[2:])
    if not agree_all(labels.shape, expected):
        raise context.shape_error(f"labels {labels} do not fit scores {scores}: their shape must be {expected}")
    if weights is not None:
        if not agree_all(weights.shape, scores.shape[1:2]):
            raise context.shape_error(f"weights {weights} must have one number for each class of scores {scores}")
        if weights.dtype != scores.dtype:
            raise context.dtype_error(f"weights {weights} and scores {scores} must have one element type")
    reduction = as_str(context.attribute("reduction"))
    if reduction not in _NEGATIVE_LOG_LIKELIHOOD_LOSS_REDUCTIONS:
        raise context.shape_error(
            f"reduction {reduction!r} is none of {', '.join(_NEGATIVE_LOG_LIKELIHOOD_LOSS_REDUCTIONS)}"
        )
    loss = expected if reduction == "none" else ()
    return TensorType(scores.dtype, loss), scores


def _softmax_cross_entropy_loss_gradient(context: GradientContext) -> tuple[str | None, ...]:
    if len(context.node.inputs) > 2 and context.needs(2):
        raise refusal(context, "class weights have no gradient; they must not depend on a trainable parameter")
    attributes: dict[str, AttributeValue] = {"reduction": as_str(context.attribute("reduction"))}
    ignored = context.attribute("ignore_index")
    if ignored is not None:
        attributes["ignore_index"] = ignored
    weights = context.input(2) if len(context.node.inputs) > 2 else ""
    (scores,) = context.emit(
        "SoftmaxCrossEntropyLossGrad",
        (context.gradient(0) or "", context.output(1), context.input(1), weights, context.gradient(1) or ""),
        attributes,
        domain=WEFT_DOMAIN,
    )
    return (scores, None, None)[: len(context.node.inputs)]


SOFTMAX_CROSS_ENTROPY_LOSS = OpSchema(
    op_type="SoftmaxCrossEntropyLoss",
    inputs=(required("scores", FLOATS), required("labels", INDICES), setting(optional("weights", FLOATS))),
    outputs=(required("output", FLOATS), optional("log_prob", FLOATS)),
    infer=_infer_softmax_cross_entropy_loss,
    gradient=_softmax_cross_entropy_loss_gradient,
    attributes={"ignore_index": Attribute(int), "reduction": Attribute(str, default="mean")},
)
"""SoftmaxCrossEntropyLoss: the negative log-likelihood of labels under the softmax of scores over axis 1."""


SOFTMAX_CROSS_ENTROPY_LOSS_GRAD = OpSchema(
    op_type="SoftmaxCrossEntropyLossGrad",
    inputs=(
        optional("gradient", FLOATS),
        required("log_prob", FLOATS),
        required("labels", INDICES),
        optional("weights", FLOATS),
        optional("log_prob_gradient", FLOATS),
    ),
    outputs=(required("scores_gradient", FLOATS),),
    infer=infer_like(1),
    attributes={"ignore_index": Attribute(int), "reduction": Attribute(str, default="mean")},
    domain=WEFT_DOMAIN,
)
"""SoftmaxCrossEntropyLossGrad(gradient, log_prob, labels, weights, log_prob_gradient): the gradient of the scores.

`gradient` is the loss's and may be left out, as may `log_prob_gradient`: not both. The attributes are the loss's.
"""
