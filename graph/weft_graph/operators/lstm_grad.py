"""LSTMGrad(gradients of Y, Y_h and Y_c, Y, inputs of LSTM): gradients of weights, bias, first states, and X last."""

from __future__ import annotations

from weft_graph.ir import WEFT_DOMAIN
from weft_graph.operators import lstm
from weft_graph.schema import InferContext, OpSchema
from weft_graph.shapes.recurrent import LSTM, gradient_formals, infer_recurrent_gradient
from weft_graph.types import TensorType

_INPUTS, _OUTPUTS = gradient_formals(LSTM, lstm.SCHEMA.inputs)


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return infer_recurrent_gradient(context, LSTM)


SCHEMA = OpSchema(
    op_type="LSTMGrad",
    inputs=_INPUTS,
    outputs=_OUTPUTS,
    infer=_infer,
    attributes=lstm.SCHEMA.attributes,
    domain=WEFT_DOMAIN,
)
