"""RNNGrad(gradients of Y and Y_h, Y, inputs of RNN): gradients of weights, bias, first states, and X last."""

from __future__ import annotations

from weft_graph.ir import WEFT_DOMAIN
from weft_graph.operators import rnn
from weft_graph.schema import InferContext, OpSchema
from weft_graph.shapes.recurrent import RNN, gradient_formals, infer_recurrent_gradient
from weft_graph.types import TensorType

_INPUTS, _OUTPUTS = gradient_formals(RNN, rnn.SCHEMA.inputs)


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return infer_recurrent_gradient(context, RNN)


SCHEMA = OpSchema(
    op_type="RNNGrad",
    inputs=_INPUTS,
    outputs=_OUTPUTS,
    infer=_infer,
    attributes=rnn.SCHEMA.attributes,
    domain=WEFT_DOMAIN,
)
