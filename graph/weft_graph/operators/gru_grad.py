"""GRUGrad(gradients of Y and Y_h, Y, inputs of GRU): gradients of weights, bias, first states, and X last."""

from __future__ import annotations

from weft_graph.ir import WEFT_DOMAIN
from weft_graph.operators import gru
from weft_graph.schema import InferContext, OpSchema
from weft_graph.shapes.recurrent import GRU, gradient_formals, infer_recurrent_gradient
from weft_graph.types import TensorType

_INPUTS, _OUTPUTS = gradient_formals(GRU, gru.SCHEMA.inputs)


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return infer_recurrent_gradient(context, GRU)


SCHEMA = OpSchema(
    op_type="GRUGrad",
    inputs=_INPUTS,
    outputs=_OUTPUTS,
    infer=_infer,
    attributes=gru.SCHEMA.attributes,
    domain=WEFT_DOMAIN,
)
