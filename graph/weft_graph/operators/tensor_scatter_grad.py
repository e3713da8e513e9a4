"""TensorScatterGrad(gradient, update, write_indices): the gradients of the cache and of the update."""

from __future__ import annotations

from weft_graph.formals import FLOATS, INT64, optional, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.operators.tensor_scatter import ATTRIBUTES
from weft_graph.schema import InferContext, OpSchema
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return context.input(0), context.input(1)


SCHEMA = OpSchema(
    op_type="TensorScatterGrad",
    inputs=(required("gradient", FLOATS), required("update", FLOATS), optional("write_indices", INT64)),
    outputs=(required("past_cache_gradient", FLOATS), required("update_gradient", FLOATS)),
    infer=_infer,
    attributes=ATTRIBUTES,
    domain=WEFT_DOMAIN,
)
