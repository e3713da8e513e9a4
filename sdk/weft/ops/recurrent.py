"""Recurrent layers over sequences, and what stops a gradient."""

from __future__ import annotations

from typing import Any

from weft.expression import Expression, Operand, apply_many
from weft.ops.generic import Name, labelled
from weft_graph.ir import WEFT_DOMAIN


def lstm(
    x: Operand,
    w: Operand,
    r: Operand,
    bias: Operand | None = None,
    *,
    lengths: Operand | None = None,
    initial_h: Operand | None = None,
    initial_c: Operand | None = None,
    direction: str = "forward",
    layout: int = 1,
    name: Name = None,
    **attributes: Any,
) -> tuple[Expression, Expression, Expression]:
    """Long short-term memory over x (batch, time, inputs): (states of every turn, states at the end, memory there).

    w (ways, 4 * hidden, inputs) and r (ways, 4 * hidden, hidden) have the gates input, output, forget and cell one
    below the other, bias (ways, 8 * hidden) those of both; there are two ways where `direction` is "bidirectional".
    Outputs are (batch, time, ways, hidden) and twice (batch, ways, hidden). `lengths` (batch) int32 are those of
    sequences that end earlier. `layout=0` has time before the batch, as ONNX's default. Further attributes have ONNX's
    names. Hochreiter and Schmidhuber 1997.
    """
    given = {"direction": direction, "layout": layout, **attributes}
    inputs = (x, w, r, bias, lengths, initial_h, initial_c)
    states, last, memory = apply_many("LSTM", inputs, given, requested=3, label=labelled(name, "LSTM"))
    return states, last, memory


def gru(
    x: Operand,
    w: Operand,
    r: Operand,
    bias: Operand | None = None,
    *,
    lengths: Operand | None = None,
    initial_h: Operand | None = None,
    direction: str = "forward",
    layout: int = 1,
    name: Name = None,
    **attributes: Any,
) -> tuple[Expression, Expression]:
    """Gated recurrent units over x (batch, time, inputs): (states of every turn, states at the end).

    As `lstm`, with the gates update, reset and hidden: w (ways, 3 * hidden, inputs), bias (ways, 6 * hidden).
    `linear_before_reset=1` is the form that PyTorch and cuDNN have. Cho et al. 2014.
    """
    given = {"direction": direction, "layout": layout, **attributes}
    inputs = (x, w, r, bias, lengths, initial_h)
    states, last = apply_many("GRU", inputs, given, requested=2, label=labelled(name, "GRU"))
    return states, last


def rnn(
    x: Operand,
    w: Operand,
    r: Operand,
    bias: Operand | None = None,
    *,
    lengths: Operand | None = None,
    initial_h: Operand | None = None,
    direction: str = "forward",
    layout: int = 1,
    name: Name = None,
    **attributes: Any,
) -> tuple[Expression, Expression]:
    """A plain recurrent layer, h' = tanh(x W' + h R' + b), over x (batch, time, inputs).

    As `lstm`, with one gate: w (ways, hidden, inputs), bias (ways, 2 * hidden). Elman 1990.
    """
    given = {"direction": direction, "layout": layout, **attributes}
    inputs = (x, w, r, bias, lengths, initial_h)
    states, last = apply_many("RNN", inputs, given, requested=2, label=labelled(name, "RNN"))
    return states, last


def stop_gradient(x: Operand, *, name: Name = None) -> Expression:
    """x, as a constant: no gradient flows back through it, so that what made it is not trained by what reads it."""
    label = labelled(name, "StopGradient")
    return apply_many("StopGradient", (x,), {}, requested=1, label=label, domain=WEFT_DOMAIN)[0]
