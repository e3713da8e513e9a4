"""Recurrent layers: RNN, GRU, LSTM."""

from __future__ import annotations

from weft_graph.formals import FLOATS, optional
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.recurrent import (
    ATTRIBUTES,
    GRU,
    INPUTS,
    LSTM,
    OUTPUTS,
    RNN,
    gradient_formals,
    infer_recurrent,
    infer_recurrent_gradient,
    recurrent_flops,
    recurrent_gradient,
)
from weft_graph.types import TensorType

_RNN_ATTRIBUTES = ATTRIBUTES


def _infer_rnn(context: InferContext) -> tuple[TensorType, ...]:
    return infer_recurrent(context, RNN)


def _rnn_gradient(context: GradientContext) -> tuple[str | None, ...]:
    return recurrent_gradient(context, RNN, tuple(_RNN_ATTRIBUTES))


RNN_SCHEMA = OpSchema(
    op_type="RNN",
    inputs=INPUTS,
    outputs=OUTPUTS,
    infer=_infer_rnn,
    gradient=_rnn_gradient,
    attributes=_RNN_ATTRIBUTES,
    flops=recurrent_flops(RNN),
    product=True,
)
"""RNN: a plain recurrent layer over sequences, in one direction or both."""


_RNN_GRAD_INPUTS, _RNN_GRAD_OUTPUTS = gradient_formals(RNN, RNN_SCHEMA.inputs)


def _infer_rnn_grad(context: InferContext) -> tuple[TensorType, ...]:
    return infer_recurrent_gradient(context, RNN)


RNN_GRAD = OpSchema(
    op_type="RNNGrad",
    inputs=_RNN_GRAD_INPUTS,
    outputs=_RNN_GRAD_OUTPUTS,
    infer=_infer_rnn_grad,
    attributes=RNN_SCHEMA.attributes,
    domain=WEFT_DOMAIN,
)
"""RNNGrad(gradients of Y and Y_h, Y, inputs of RNN): gradients of weights, bias, first states, and X last."""


_GRU_ATTRIBUTES = {**ATTRIBUTES, "linear_before_reset": Attribute(int, default=0)}


def _infer_gru(context: InferContext) -> tuple[TensorType, ...]:
    return infer_recurrent(context, GRU)


def _gru_gradient(context: GradientContext) -> tuple[str | None, ...]:
    return recurrent_gradient(context, GRU, tuple(_GRU_ATTRIBUTES))


GRU_SCHEMA = OpSchema(
    op_type="GRU",
    inputs=INPUTS,
    outputs=OUTPUTS,
    infer=_infer_gru,
    gradient=_gru_gradient,
    attributes=_GRU_ATTRIBUTES,
    flops=recurrent_flops(GRU),
    product=True,
)
"""GRU: a layer of gated recurrent units over sequences, in one direction or both."""


_GRU_GRAD_INPUTS, _GRU_GRAD_OUTPUTS = gradient_formals(GRU, GRU_SCHEMA.inputs)


def _infer_gru_grad(context: InferContext) -> tuple[TensorType, ...]:
    return infer_recurrent_gradient(context, GRU)


GRU_GRAD = OpSchema(
    op_type="GRUGrad",
    inputs=_GRU_GRAD_INPUTS,
    outputs=_GRU_GRAD_OUTPUTS,
    infer=_infer_gru_grad,
    attributes=GRU_SCHEMA.attributes,
    domain=WEFT_DOMAIN,
)
"""GRUGrad(gradients of Y and Y_h, Y, inputs of GRU): gradients of weights, bias, first states, and X last."""


_LSTM_ATTRIBUTES = {**ATTRIBUTES, "input_forget": Attribute(int, default=0)}


def _infer_lstm(context: InferContext) -> tuple[TensorType, ...]:
    return infer_recurrent(context, LSTM)


def _lstm_gradient(context: GradientContext) -> tuple[str | None, ...]:
    return recurrent_gradient(context, LSTM, tuple(_LSTM_ATTRIBUTES))


LSTM_SCHEMA = OpSchema(
    op_type="LSTM",
    inputs=(*INPUTS, optional("initial_c", FLOATS), optional("P", FLOATS)),
    outputs=(*OUTPUTS, optional("Y_c", FLOATS)),
    infer=_infer_lstm,
    gradient=_lstm_gradient,
    attributes=_LSTM_ATTRIBUTES,
    flops=recurrent_flops(LSTM),
    product=True,
)
"""LSTM: a layer of long short-term memory over sequences, in one direction or both.

`clip` bounds whatever goes into an activation function, the memory on its way to the last of them too.
"""


_LSTM_GRAD_INPUTS, _LSTM_GRAD_OUTPUTS = gradient_formals(LSTM, LSTM_SCHEMA.inputs)


def _infer_lstm_grad(context: InferContext) -> tuple[TensorType, ...]:
    return infer_recurrent_gradient(context, LSTM)


LSTM_GRAD = OpSchema(
    op_type="LSTMGrad",
    inputs=_LSTM_GRAD_INPUTS,
    outputs=_LSTM_GRAD_OUTPUTS,
    infer=_infer_lstm_grad,
    attributes=LSTM_SCHEMA.attributes,
    domain=WEFT_DOMAIN,
)
"""LSTMGrad(gradients of Y, Y_h and Y_c, Y, inputs of LSTM): gradients of weights, bias, first states, and X last."""
