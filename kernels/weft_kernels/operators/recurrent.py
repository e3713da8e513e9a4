"""Recurrent layers: RNN, GRU, LSTM."""

from __future__ import annotations

from weft_graph.ir import WEFT_DOMAIN
from weft_graph.shapes.recurrent import GRU, LSTM, RNN
from weft_kernels.kernel import Attributes, Inputs, KernelContext, Outputs, kernel
from weft_kernels.recurrent.gru import run as run_one_way
from weft_kernels.recurrent.gru import run_back as run_one_way_back
from weft_kernels.recurrent.layer import backward, forward
from weft_kernels.recurrent.lstm import run as run_in_lstm
from weft_kernels.recurrent.lstm import run_back as run_back_in_lstm
from weft_kernels.recurrent.rnn import run as run_in_rnn
from weft_kernels.recurrent.rnn import run_back as run_back_in_rnn


@kernel("RNN", host_inputs=(4,), in_float32=("float16", "bfloat16"))
def rnn(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """A plain recurrent layer: one product for all turns' inputs, and one for each turn's state."""
    return forward(context.xp, RNN, inputs, attributes, run_in_rnn)


@kernel("RNNGrad", domain=WEFT_DOMAIN, host_inputs=(7,), in_float32=("float16", "bfloat16"))
def rnn_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradients of RNN's inputs: the gates of all turns at once, from the states in Y, and then the turns backwards."""
    return backward(context, RNN, inputs, attributes, run_back_in_rnn)


@kernel("GRU", host_inputs=(4,), in_float32=("float16", "bfloat16"))
def gru(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gated recurrent units: one product for all turns' inputs, and one for each turn's state."""
    return forward(context.xp, GRU, inputs, attributes, run_one_way)


@kernel("GRUGrad", domain=WEFT_DOMAIN, host_inputs=(7,), in_float32=("float16", "bfloat16"))
def gru_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradients of GRU's inputs: the gates of all turns at once, from the states in Y, and then the turns backwards."""
    return backward(context, GRU, inputs, attributes, run_one_way_back)


@kernel("LSTM", host_inputs=(4,), in_float32=("float16", "bfloat16"))
def lstm(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Long short-term memory: one product for all turns' inputs, and one for each turn's state."""
    return forward(context.xp, LSTM, inputs, attributes, run_in_lstm)


@kernel("LSTMGrad", domain=WEFT_DOMAIN, host_inputs=(8,), in_float32=("float16", "bfloat16"))
def lstm_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradients of LSTM's inputs: all gates at once, from the states in Y, then the turns backwards."""
    return backward(context, LSTM, inputs, attributes, run_back_in_lstm)
