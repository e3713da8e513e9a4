"""LinearAttentionGrad(LinearAttention's inputs, gradients of its outputs): the gradients of the inputs.

States are computed again, a chunk at a time. For an input that is left out an empty vector is given.
"""

from __future__ import annotations

from weft_graph.formals import FLOATS, optional, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.operators.linear_attention import ATTRIBUTES
from weft_graph.schema import InferContext, OpSchema
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    empty = TensorType(context.input(0).dtype, (0,))
    return tuple(context.optional_input(index) or empty for index in range(6))


SCHEMA = OpSchema(
    op_type="LinearAttentionGrad",
    inputs=(
        required("query", FLOATS),
        required("key", FLOATS),
        required("value", FLOATS),
        optional("past_state", FLOATS),
        optional("decay", FLOATS),
        optional("beta", FLOATS),
        optional("output_gradient", FLOATS),
        optional("present_state_gradient", FLOATS),
    ),
    outputs=(
        required("query_gradient", FLOATS),
        required("key_gradient", FLOATS),
        required("value_gradient", FLOATS),
        required("past_state_gradient", FLOATS),
        optional("decay_gradient", FLOATS),
        optional("beta_gradient", FLOATS),
    ),
    infer=_infer,
    attributes=ATTRIBUTES,
    domain=WEFT_DOMAIN,
)
