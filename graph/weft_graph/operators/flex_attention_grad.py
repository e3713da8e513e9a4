"""FlexAttentionGrad(gradient, Q, K, V, captured values): the gradients of Q, K, V and of some captured values.

`score_mod` and `prob_mod` are the node's bodies, `score_mod_grad` and `prob_mod_grad` take what these were given and
the gradient of what they give: see FlexAttention. `captured` are the places of the captured values with a gradient.
"""

from __future__ import annotations

from weft_graph.attributes import as_ints
from weft_graph.formals import ANY, FLOATS, required, rest
from weft_graph.ir import WEFT_DOMAIN, Subgraph
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    places = (1, 2, 3, *(4 + place for place in as_ints(context.attribute("captured"))))
    return tuple(context.input(place) for place in places)


SCHEMA = OpSchema(
    op_type="FlexAttentionGrad",
    inputs=(
        required("gradient", FLOATS),
        required("Q", FLOATS),
        required("K", FLOATS),
        required("V", FLOATS),
        rest("captured", ANY),
    ),
    outputs=(
        required("Q_gradient", FLOATS),
        required("K_gradient", FLOATS),
        required("V_gradient", FLOATS),
        rest("captured_gradients", FLOATS),
    ),
    infer=_infer,
    attributes={
        "captured": Attribute(tuple, required=True),
        "prob_mod": Attribute(Subgraph),
        "prob_mod_grad": Attribute(Subgraph),
        "scale": Attribute(float),
        "score_mod": Attribute(Subgraph),
        "score_mod_grad": Attribute(Subgraph),
        "softmax_precision": Attribute(int),
    },
    domain=WEFT_DOMAIN,
)
