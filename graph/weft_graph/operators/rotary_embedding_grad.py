"""RotaryEmbeddingGrad(gradient, X, cos_cache, position_ids): the gradients of cos_cache and sin_cache."""

from __future__ import annotations

from weft_graph.formals import FLOATS, INDICES, optional, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.operators.rotary_embedding import ATTRIBUTES
from weft_graph.schema import InferContext, OpSchema
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return context.input(2), context.input(2)


SCHEMA = OpSchema(
    op_type="RotaryEmbeddingGrad",
    inputs=(
        required("gradient", FLOATS),
        required("X", FLOATS),
        required("cos_cache", FLOATS),
        optional("position_ids", INDICES),
    ),
    outputs=(required("cos_cache_gradient", FLOATS), required("sin_cache_gradient", FLOATS)),
    infer=_infer,
    attributes=ATTRIBUTES,
    domain=WEFT_DOMAIN,
)
