"""NegativeLogLikelihoodLoss: minus the input at each label along axis 1, weighed.

Summed, their mean, or as they are.
"""

from __future__ import annotations

from weft_graph.attributes import as_str
from weft_graph.dimensions.dims import agree_all
from weft_graph.formals import FLOATS, INDICES, optional, required, setting
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.broadcasting import check_same_dtype
from weft_graph.shapes.composing import given_attributes
from weft_graph.shapes.flops import reduced
from weft_graph.shapes.flow import incoming, refusal
from weft_graph.types import Shape, TensorType

_REDUCTIONS = ("mean", "sum", "none")


def _infer(context: InferContext) -> tuple[TensorType, ...]:
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
    if reduction not in _REDUCTIONS:
        raise context.shape_error(f"reduction {reduction!r} is none of {', '.join(_REDUCTIONS)}")
    return (TensorType(scores.dtype, expected if reduction == "none" else ()),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    if context.needs(2):
        raise refusal(context, "class weights have no gradient; they must not depend on a trainable parameter")
    inputs = (incoming(context), *context.node.inputs)
    attributes = given_attributes(context, ("ignore_index", "reduction"))
    (scores,) = context.emit("NegativeLogLikelihoodLossGrad", inputs, attributes, domain=WEFT_DOMAIN)
    return (scores, None, None)[: len(context.node.inputs)]


SCHEMA = OpSchema(
    op_type="NegativeLogLikelihoodLoss",
    inputs=(required("input", FLOATS), required("target", INDICES), setting(optional("weight", FLOATS))),
    outputs=(required("loss", FLOATS),),
    infer=_infer,
    gradient=_gradient,
    attributes={"ignore_index": Attribute(int), "reduction": Attribute(str, default="mean")},
    flops=reduced,
)
