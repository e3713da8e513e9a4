"""AttentionGrad(Attention's inputs, gradients of its outputs): those of Q, K, V, past_key, past_value and attn_mask.

Probabilities are computed again, a block of them at a time. Without a cache, the gradients of its parts are empty
vectors; a mask that is not of floats has an empty one too.
"""

from __future__ import annotations

from weft_graph.formals import BOOLEANS, FLOATS, INT64, NUMBERS, optional, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.operators.attention import ATTRIBUTES
from weft_graph.schema import InferContext, OpSchema
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    empty = TensorType(context.input(0).dtype, (0,))
    mask = context.optional_input(3)
    return (
        *(context.input(index) for index in range(3)),
        context.optional_input(4) or empty,
        context.optional_input(5) or empty,
        mask if mask is not None and mask.dtype.is_float else empty,
    )


SCHEMA = OpSchema(
    op_type="AttentionGrad",
    inputs=(
        required("Q", FLOATS),
        required("K", FLOATS),
        required("V", FLOATS),
        optional("attn_mask", NUMBERS | BOOLEANS),
        optional("past_key", FLOATS),
        optional("past_value", FLOATS),
        optional("nonpad_kv_seqlen", INT64),
        optional("Y_gradient", FLOATS),
        optional("present_key_gradient", FLOATS),
        optional("present_value_gradient", FLOATS),
        optional("qk_matmul_output_gradient", FLOATS),
    ),
    outputs=(
        required("Q_gradient", FLOATS),
        required("K_gradient", FLOATS),
        required("V_gradient", FLOATS),
        optional("past_key_gradient", FLOATS),
        optional("past_value_gradient", FLOATS),
        optional("attn_mask_gradient", FLOATS),
    ),
    infer=_infer,
    attributes=ATTRIBUTES,
    domain=WEFT_DOMAIN,
)
