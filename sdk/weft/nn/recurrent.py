"""Recurrent layers: LSTM, GRU and RNN."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

from weft import ops
from weft.expression import Expression, Operand
from weft.nn.initializers import Init, uniform, zeros
from weft.nn.layer import Layer, as_expression, at_least_one
from weft_graph.errors import DTypeError, ShapeError
from weft_graph.types import DType


class Recurrent(Layer):
    """What LSTM, GRU and RNN share: x (batch, time, input_size) gives (batch, time, ways * hidden_size).

    Parameters: weight (ways, gates * hidden_size, input_size), recurrent (ways, gates * hidden_size, hidden_size), bias
    (ways, 2 * gates * hidden_size), in ONNX's order of gates; there are two ways where it is bidirectional, the one
    backwards last. With `sequence=False` the layer gives its states at the end alone, (batch, ways * hidden_size). A
    call may say the `lengths` (batch) of sequences that end before the others, whole numbers; what is behind an end is
    0. Weights start as `init` says, uniform within sqrt(1 / hidden_size) unless set, biases at zero.
    """

    gates: int

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        bidirectional: bool = False,
        sequence: bool = True,
        bias: bool = True,
        init: Init | None = None,
        bias_init: Init = zeros,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.input_size = at_least_one("input_size", input_size)
        self.hidden_size = at_least_one("hidden_size", hidden_size)
        self.bidirectional = bidirectional
        self.sequence = sequence
        self.bias = bias
        bound = math.sqrt(1.0 / hidden_size)
        self.init = uniform(-bound, bound) if init is None else init
        self.bias_init = bias_init

    def __call__(self, x: Operand, /, lengths: Operand | None = None) -> Expression:
        x = as_expression(x)
        if x.rank != 3:
            raise ShapeError(
                f"layer {self.scope.name!r}: a {type(self).__name__} takes (batch, time, input_size), not {x.type}",
                node=self.scope.name,
            )
        self.check_size(x, 2, "input_size", self.input_size)
        ways, rows = 2 if self.bidirectional else 1, self.gates * self.hidden_size
        weights = (
            self.parameter("weight", (ways, rows, self.input_size), self.init, x.dtype),
            self.parameter("recurrent", (ways, rows, self.hidden_size), self.init, x.dtype),
            self.parameter("bias", (ways, 2 * rows), self.bias_init, x.dtype) if self.bias else None,
        )
        direction = "bidirectional" if self.bidirectional else "forward"
        states, last = self._run(x, weights, self._lengths(lengths), direction)
        made, shape = (
            (states, [0, 0, ways * self.hidden_size]) if self.sequence else (last, [0, ways * self.hidden_size])
        )
        return ops.reshape(made, shape, name=self.label("joined"))

    @abstractmethod
    def _run(self, x: Expression, weights: tuple[Any, ...], lengths: Any, direction: str) -> tuple[Expression, ...]:
        """(states of every turn, states at the end) with ways as a dimension of their own."""

    def _lengths(self, lengths: Operand | None) -> Expression | None:
        if lengths is None:
            return None
        given = as_expression(lengths)
        if given.dtype not in (DType.INT32, DType.INT64):
            raise DTypeError(
                f"layer {self.scope.name!r} takes lengths of int32 or int64, and is called with {given.type}",
                node=self.scope.name,
            )
        return given if given.dtype == DType.INT32 else ops.cast(given, DType.INT32, name=self.label("lengths"))


class LSTM(Recurrent):
    """Long short-term memory (Hochreiter and Schmidhuber 1997): gates input, output, forget and cell.

    See `Recurrent` for arguments, parameters and shapes.
    """

    kind = "lstm"
    gates = 4

    def _run(self, x: Expression, weights: tuple[Any, ...], lengths: Any, direction: str) -> tuple[Expression, ...]:
        return ops.lstm(x, *weights, lengths=lengths, direction=direction, name=self.label())[:2]


class GRU(Recurrent):
    """Gated recurrent units (Cho et al. 2014): gates update, reset and hidden.

    The reset is behind the product, as PyTorch and cuDNN have it. See `Recurrent` for arguments, parameters and shapes.
    """

    kind = "gru"
    gates = 3

    def _run(self, x: Expression, weights: tuple[Any, ...], lengths: Any, direction: str) -> tuple[Expression, ...]:
        return ops.gru(x, *weights, lengths=lengths, direction=direction, linear_before_reset=1, name=self.label())


class RNN(Recurrent):
    """A plain recurrent layer (Elman 1990): h' = tanh(x W' + h R' + b).

    See `Recurrent` for arguments, parameters and shapes.
    """

    kind = "rnn"
    gates = 1

    def _run(self, x: Expression, weights: tuple[Any, ...], lengths: Any, direction: str) -> tuple[Expression, ...]:
        return ops.rnn(x, *weights, lengths=lengths, direction=direction, name=self.label())
