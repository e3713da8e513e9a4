"""SoftmaxCrossEntropyLossGrad(gradient, log_prob, labels, weights, log_prob_gradient): the gradient of the scores.

`gradient` is the loss's and may be left out, as may `log_prob_gradient`: not both. The attributes are the loss's.
"""

from __future__ import annotations

from weft_graph.formals import FLOATS, INDICES, optional, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (context.input(1),)


SCHEMA = OpSchema(
    op_type="SoftmaxCrossEntropyLossGrad",
    inputs=(
        optional("gradient", FLOATS),
        required("log_prob", FLOATS),
        required("labels", INDICES),
        optional("weights", FLOATS),
        optional("log_prob_gradient", FLOATS),
    ),
    outputs=(required("scores_gradient", FLOATS),),
    infer=_infer,
    attributes={"ignore_index": Attribute(int), "reduction": Attribute(str, default="mean")},
    domain=WEFT_DOMAIN,
)
