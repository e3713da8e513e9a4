"""Recurrent layers are PyTorch's, turn by turn; what a stopped gradient leaves alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft import nn, ops
from weft_graph.check import check
from weft_graph.differentiation import differentiate
from weft_graph.errors import DTypeError, GraphRefusedError, ShapeError
from weft_graph.ir import Initializer

RNG = np.random.default_rng(4)
BATCH, TIME, INPUTS, HIDDEN = 3, 4, 2, 5


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def lstm_turn(x: Any, h: Any, c: Any, b: Any, r: Any) -> tuple[Any, Any]:
    i, o, f, g = np.split(x + h @ r.T + b, 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def gru_turn(x: Any, h: Any, c: Any, b: Any, r: Any) -> tuple[Any, Any]:
    xz, xr, xn = np.split(x, 3, axis=-1)
    hz, hr, hn = np.split(h @ r.T + b, 3, axis=-1)
    z = sigmoid(xz + hz)
    return (1 - z) * np.tanh(xn + sigmoid(xr + hr) * hn) + z * h, c


def rnn_turn(x: Any, h: Any, c: Any, b: Any, r: Any) -> tuple[Any, Any]:
    return np.tanh(x + h @ r.T + b), c


KINDS = [(nn.LSTM, 4, lstm_turn), (nn.GRU, 3, gru_turn), (nn.RNN, 1, rnn_turn)]


@pytest.mark.parametrize(("layer", "gates", "turn"), KINDS, ids=["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("sequence", [True, False])
def test_a_recurrent_layer_goes_turn_by_turn_both_ways(layer: Any, gates: int, turn: Any, sequence: bool) -> None:
    rows, lengths = gates * HIDDEN, np.array([4, 2, 3])
    x = RNG.standard_normal((BATCH, TIME, INPUTS))
    given = {
        "r.weight": RNG.standard_normal((2, rows, INPUTS)),
        "r.recurrent": RNG.standard_normal((2, rows, HIDDEN)) * 0.5,
        "r.bias": RNG.standard_normal((2, 2 * rows)),
    }
    made = layer(INPUTS, HIDDEN, bidirectional=True, sequence=sequence, name="r")
    y = made(weft.input("x", ("batch", TIME, INPUTS), "float64"), weft.input("n", ("batch",), "int64"))
    assert y.shape == (("batch", TIME, 2 * HIDDEN) if sequence else ("batch", 2 * HIDDEN))
    states, ends = np.zeros((BATCH, TIME, 2, HIDDEN)), np.zeros((BATCH, 2, HIDDEN))
    for way in range(2):
        w, r, b = (given[f"r.{name}"][way] for name in ("weight", "recurrent", "bias"))
        for sample, length in enumerate(lengths):
            h, c = np.zeros((1, HIDDEN)), np.zeros((1, HIDDEN))
            for place in range(length) if way == 0 else reversed(range(length)):
                h, c = turn(x[sample, place] @ w.T + b[:rows], h, c, b[rows:], r)
                states[sample, place, way] = h[0]
            ends[sample, way] = h[0]
    expected = states.reshape(BATCH, TIME, -1) if sequence else ends.reshape(BATCH, -1)
    np.testing.assert_allclose(y.eval({"x": x, "n": lengths}, parameters=given), expected, rtol=1e-12)


def test_weights_start_within_the_bound_of_the_hidden_size() -> None:
    y = nn.LSTM(INPUTS, 16, name="r")(weft.input("x", ("batch", TIME, INPUTS)))
    found = {parameter.name: parameter for parameter in y.graph().parameters}
    assert {name: parameter.type.shape for name, parameter in found.items()} == {
        "r.weight": (1, 64, INPUTS),
        "r.recurrent": (1, 64, 16),
        "r.bias": (1, 128),
    }
    assert found["r.recurrent"].initializer == Initializer("RandomUniform", {"low": -0.25, "high": 0.25})
    assert "r.bias" not in {
        p.name for p in nn.GRU(2, 3, bias=False, name="r")(weft.input("x", ("b", 4, 2))).graph().parameters
    }


def test_what_does_not_fit_a_recurrent_layer_is_refused_by_its_name() -> None:
    layer = nn.LSTM(INPUTS, HIDDEN, name="r")
    with pytest.raises(ShapeError, match=r"layer 'r': a LSTM takes \(batch, time, input_size\)"):
        layer(weft.input("x", ("batch", INPUTS)))
    with pytest.raises(ShapeError, match="layer 'r' has input_size=2"):
        layer(weft.input("x", ("batch", TIME, 7)))
    with pytest.raises(DTypeError, match="layer 'r' takes lengths of int32 or int64"):
        layer(weft.input("x", ("batch", TIME, INPUTS)), weft.input("n", ("batch",)))


def test_a_recurrent_layer_trains() -> None:
    x = weft.input("x", ("batch", TIME, INPUTS))
    loss = ops.reduce_mean(nn.GRU(INPUTS, HIDDEN, sequence=False, name="r")(x), name="loss")
    derived = differentiate(loss.graph(), loss.graph().outputs[0])
    assert list(derived.gradients) == ["r.weight", "r.recurrent", "r.bias"]
    (backward,) = (node for node in derived.graph.nodes if node.op_type == "GRUGrad")
    assert len(backward.outputs) == 4  # X is data, and needs none


def test_a_stopped_gradient_leaves_what_is_before_it_alone() -> None:
    x = weft.input("x", ("batch", INPUTS))
    still = ops.stop_gradient(nn.Linear(INPUTS, INPUTS, name="still")(x))
    loss = ops.reduce_mean(nn.Linear(INPUTS, 1, name="moved")(still), name="loss")
    graph = loss.graph()
    check(graph)
    with pytest.raises(GraphRefusedError, match=r"no path with a gradient to parameter 'still\.weight'"):
        differentiate(graph, graph.outputs[0])
