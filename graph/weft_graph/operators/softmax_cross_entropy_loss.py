"""SoftmaxCrossEntropyLoss: the negative log-likelihood of labels under the softmax of scores over axis 1."""

from __future__ import annotations

from weft_graph.attributes import as_str
from weft_graph.dimensions.dims import agree_all
from weft_graph.formals import FLOATS, INDICES, optional, required, setting
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.flow import refusal
from weft_graph.types import Shape, TensorType

_REDUCTIONS = ("mean", "sum", "none")


def _infer(context: InferContext) -> tuple[TensorType, ...]:
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
    if reduction not in _REDUCTIONS:
        raise context.shape_error(f"reduction {reduction!r} is none of {', '.join(_REDUCTIONS)}")
    loss = expected if reduction == "none" else ()
    return TensorType(scores.dtype, loss), scores


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
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


SCHEMA = OpSchema(
    op_type="SoftmaxCrossEntropyLoss",
    inputs=(required("scores", FLOATS), required("labels", INDICES), setting(optional("weights", FLOATS))),
    outputs=(required("output", FLOATS), optional("log_prob", FLOATS)),
    infer=_infer,
    gradient=_gradient,
    attributes={"ignore_index": Attribute(int), "reduction": Attribute(str, default="mean")},
)
