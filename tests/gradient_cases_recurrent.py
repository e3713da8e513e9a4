"""Cases of LSTM, GRU and RNN: directions, layouts, lengths, peepholes, bounds and every activation function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradient_case import Array, GradientCase, floats
from weft_graph.ir import AttributeValue

TIME, BATCH, INPUTS, HIDDEN = 4, 3, 2, 3
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
WAYS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}

Function = Callable[[Any], Any]
FUNCTIONS: Mapping[str, Callable[[float, float], Function]] = {
    "Relu": lambda a, b: jax.nn.relu,
    "Tanh": lambda a, b: jnp.tanh,
    "Sigmoid": lambda a, b: jax.nn.sigmoid,
    "Affine": lambda a, b: lambda x: a * x + b,
    "LeakyRelu": lambda a, b: lambda x: jnp.where(x >= 0, x, a * x),
    "ThresholdedRelu": lambda a, b: lambda x: jnp.where(x >= a, x, 0.0),
    "ScaledTanh": lambda a, b: lambda x: a * jnp.tanh(b * x),
    "HardSigmoid": lambda a, b: lambda x: jnp.clip(a * x + b, 0, 1),
    "Elu": lambda a, b: lambda x: jnp.where(x >= 0, x, a * (jnp.exp(x) - 1)),
    "Softsign": lambda a, b: lambda x: x / (1 + jnp.abs(x)),
    "Softplus": lambda a, b: jax.nn.softplus,
}
DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


def _lstm(how: Mapping[str, Any], fs: Sequence[Function], r: Any, b: Any, p: Any) -> Callable[[Any, Any], Any]:
    f, g, h = fs

    def step(state: tuple[Any, Any], x: Any) -> tuple[Any, Any]:
        before, memory = state
        i, o, z, c = jnp.split(x + before @ r.T + b, 4, axis=-1)
        i = f(i + p[0] * memory)
        z = 1 - i if how.get("input_forget") else f(z + p[2] * memory)
        new = z * memory + i * g(c)
        return (f(o + p[1] * new) * h(new), new)

    return step


def _gru(how: Mapping[str, Any], fs: Sequence[Function], r: Any, b: Any, p: Any) -> Callable[[Any, Any], Any]:
    f, g = fs
    rz, rr, rh = jnp.split(r, 3)
    bz, br, bh = jnp.split(b, 3)

    def step(state: tuple[Any], x: Any) -> tuple[Any]:
        (before,) = state
        xz, xr, xh = jnp.split(x, 3, axis=-1)
        z, reset = f(xz + before @ rz.T + bz), f(xr + before @ rr.T + br)
        linear_first = how.get("linear_before_reset")
        inner = reset * (before @ rh.T + bh) if linear_first else (reset * before) @ rh.T + bh
        return ((1 - z) * g(xh + inner) + z * before,)

    return step


def _rnn(how: Mapping[str, Any], fs: Sequence[Function], r: Any, b: Any, p: Any) -> Callable[[Any, Any], Any]:
    return lambda state, x: (fs[0](x + state[0] @ r.T + b),)


CELLS = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}


def _reference(op_type: str, how: Mapping[str, Any], present: Sequence[bool], lengths: Array | None) -> Any:
    """The layer written turn by turn, one sample's end after the other, over JAX arrays."""

    def layer(*given: Any) -> tuple[Any, ...]:
        values = iter(given)
        x, w, r, b, h0, c0, p = (next(values) if is_there else None for is_there in present)
        by_sample = how.get("layout", 0) == 1
        x = jnp.swapaxes(x, 0, 1) if by_sample else x
        sequences, ends = [], []
        for way, backwards in enumerate(WAYS[how.get("direction", "forward")]):
            state = [_first(h0, way, by_sample), _first(c0, way, by_sample)][: 2 if op_type == "LSTM" else 1]
            bias = jnp.zeros(2 * w.shape[1]) if b is None else b[way]
            peep = jnp.zeros((3, HIDDEN)) if p is None else p[way].reshape(3, HIDDEN)
            fs = _functions(op_type, how, way)
            step = CELLS[op_type](how, fs, r[way], bias[w.shape[1] :], peep)
            brought = x @ w[way].T + bias[: w.shape[1]]
            ends_at = jnp.full(BATCH, TIME) if lengths is None else jnp.asarray(lengths)

            def turn(state: Any, given: Any, step: Any = step, ends_at: Any = ends_at) -> tuple[Any, Any]:
                number, x = given
                new, inside = step(state, x), (number < ends_at)[:, None]
                held = tuple(jnp.where(inside, after, before) for after, before in zip(new, state, strict=True))
                return held, jnp.where(inside, new[0], 0.0)

            state, rows = jax.lax.scan(turn, tuple(state), (jnp.arange(TIME), brought), reverse=backwards)
            sequences.append(rows)
            ends.append(state)
        y = jnp.stack(sequences, axis=1)
        states = [jnp.stack(each, axis=1 if by_sample else 0) for each in zip(*ends, strict=True)]
        return (jnp.transpose(y, (2, 0, 1, 3)) if by_sample else y, *states)

    return layer


def _first(given: Any, way: int, by_sample: bool) -> Any:
    if given is None:
        return jnp.zeros((BATCH, HIDDEN))
    return given[:, way] if by_sample else given[way]


def _functions(op_type: str, how: Mapping[str, Any], way: int) -> list[Function]:
    each = len(DEFAULTS[op_type])
    names = how.get("activations", DEFAULTS[op_type] * 2)[way * each : (way + 1) * each]
    alpha, beta = how.get("activation_alpha", ()), how.get("activation_beta", ())
    bound = how.get("clip")
    made = []
    for name in names:
        function = FUNCTIONS[name](alpha[0] if alpha else 0.0, beta[0] if beta else 0.0)
        made.append(function if bound is None else lambda x, f=function: f(jnp.clip(x, -bound, bound)))
    return made


def _case(name: str, op_type: str, *parts: str, lengths: tuple[int, ...] = (), **how: AttributeValue) -> GradientCase:
    """`parts` are the optional inputs that are there: B, h, c and P."""
    ways = len(WAYS[str(how.get("direction", "forward"))])
    by_sample = how.get("layout", 0) == 1
    gates = GATES[op_type] * HIDDEN
    state = (BATCH, ways, HIDDEN) if by_sample else (ways, BATCH, HIDDEN)
    arrays: list[Array | None] = [
        floats(*((BATCH, TIME) if by_sample else (TIME, BATCH)), INPUTS, low=-1.0, high=1.0),
        floats(ways, gates, INPUTS, low=-1.0, high=1.0, seed=1),
        floats(ways, gates, HIDDEN, low=-0.8, high=0.8, seed=2),
        floats(ways, 2 * gates, low=-0.5, high=0.5, seed=3) if "B" in parts else None,
        floats(*state, low=-1.0, high=1.0, seed=4) if "h" in parts else None,
        floats(*state, low=-1.0, high=1.0, seed=5) if "c" in parts else None,
        floats(ways, 3 * HIDDEN, low=-0.7, high=0.7, seed=6) if "P" in parts else None,
    ]
    present = [array is not None for array in arrays]
    lens = np.array(lengths, dtype=np.int32) if lengths else None
    inputs = [*arrays[:4], lens, *arrays[4 : 7 if op_type == "LSTM" else 5]]
    while inputs[-1] is None:
        inputs.pop()
    outputs = 3 if op_type == "LSTM" else 2
    smooth = not {"Relu", "ThresholdedRelu"} & set(how.get("activations", ()))  # type: ignore[arg-type]  # names
    return GradientCase(
        name, op_type, tuple(inputs), _reference(op_type, how, present, lens), how, outputs=outputs, smooth=smooth
    )


def lstm_cases() -> list[GradientCase]:
    return [
        _case("plain", "LSTM"),
        _case("whole", "LSTM", "B", "h", "c", "P", direction="bidirectional"),
        _case("lengths", "LSTM", "B", "h", "c", "P", lengths=(2, 4, 0), direction="bidirectional"),
        _case("reverse", "LSTM", "B", "c", direction="reverse", layout=1),
        _case("layout", "LSTM", "h", "P", direction="bidirectional", layout=1, hidden_size=HIDDEN),
        _case("coupled", "LSTM", "B", "P", input_forget=1),
        _case("clip", "LSTM", "B", "c", clip=0.6),
        _case("functions", "LSTM", "c", activations=("HardSigmoid", "Softsign", "Softplus"), activation_alpha=(0.3,),
              activation_beta=(0.4,)),
        _case("both_functions", "LSTM", direction="bidirectional",
              activations=("Sigmoid", "Softsign", "Tanh", "Softsign", "Sigmoid", "Affine"), activation_alpha=(0.7,),
              activation_beta=(0.1,)),
    ]  # fmt: skip


def gru_cases() -> list[GradientCase]:
    return [
        _case("plain", "GRU"),
        _case("whole", "GRU", "B", "h", direction="bidirectional"),
        _case("linear", "GRU", "B", "h", linear_before_reset=1, direction="reverse"),
        _case("linear_lengths", "GRU", "B", "h", lengths=(3, 1, 4), linear_before_reset=1, direction="bidirectional"),
        _case("lengths", "GRU", "B", "h", lengths=(3, 0, 4), layout=1, direction="bidirectional"),
        _case("clip", "GRU", "B", clip=0.5),
        _case("functions", "GRU", "B", activations=("Sigmoid", "ScaledTanh"), activation_alpha=(0.8,),
              activation_beta=(1.2,)),
    ]  # fmt: skip


def rnn_cases() -> list[GradientCase]:
    numbers = {"Affine": 2, "LeakyRelu": 1, "ThresholdedRelu": 1, "ScaledTanh": 2, "HardSigmoid": 2, "Elu": 1}
    functions = [
        _case(
            name,
            "RNN",
            "B",
            activations=(name,),
            **({"activation_alpha": (0.3,)} if numbers.get(name, 0) > 0 else {}),
            **({"activation_beta": (0.6,)} if numbers.get(name, 0) > 1 else {}),
        )
        for name in FUNCTIONS
    ]
    return [
        _case("plain", "RNN"),
        _case("whole", "RNN", "B", "h", direction="bidirectional", lengths=(4, 2, 1)),
        _case("layout", "RNN", "B", "h", direction="reverse", layout=1),
        *functions,
    ]
