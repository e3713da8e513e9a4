"""NegativeLogLikelihoodLossGrad(gradient, input, target, weight): minus each label's weight at the label, 0 elsewhere.

Times the gradient, and over the sum of weights for a mean; the attributes are the loss's.
"""

from __future__ import annotations

from weft_graph.formals import FLOATS, INDICES, optional, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (context.input(1),)


SCHEMA = OpSchema(
    op_type="NegativeLogLikelihoodLossGrad",
    inputs=(
        required("gradient", FLOATS),
        required("input", FLOATS),
        required("target", INDICES),
        optional("weight", FLOATS),
    ),
    outputs=(required("input_gradient", FLOATS),),
    infer=_infer,
    attributes={"ignore_index": Attribute(int), "reduction": Attribute(str, default="mean")},
    domain=WEFT_DOMAIN,
)
