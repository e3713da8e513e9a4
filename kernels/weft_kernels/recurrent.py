"""The steps of a recurrent layer, forwards and backwards, whatever its cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from weft_graph.attributes import as_float, as_int, as_str
from weft_graph.ir import AttributeValue
from weft_graph.shapes.recurrent import DIRECTIONS, Activation, Cell, activations_of, gradient_places
from weft_kernels.arguments import optional
from weft_kernels.kernel import Array, KernelContext

# --- The functions that gates have, and their slopes ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate's function. What goes into it is bounded by `clip` on both sides, where that is set."""

    xp: Any
    activation: Activation
    clip: float | None

    def __call__(self, x: Array) -> Array:
        y: Array = _FUNCTIONS[self.activation.name](self.xp, self._bounded(x), self.activation)
        return y

    def slope(self, x: Array, y: Array) -> Array:
        """The slope at x, where the function gave y: 0 beyond the bounds, and on them that of the function."""
        slope: Array = _SLOPES[self.activation.name](self.xp, self._bounded(x), y, self.activation)
        if self.clip is None:
            return slope
        bounded: Array = self.xp.where(self.xp.abs(x) <= self.clip, slope, x.dtype.type(0))
        return bounded

    def _bounded(self, x: Array) -> Array:
        return x if self.clip is None else self.xp.clip(x, -self.clip, self.clip)


def _sigmoid(xp: Any, x: Array, _how: Activation) -> Array:
    # With e = exp(-|x|) in (0, 1]: 1 / (1 + e) for x >= 0, and e / (1 + e) below.
    decayed = xp.exp(-xp.abs(x))
    return xp.where(x >= 0, x.dtype.type(1), decayed) / (1 + decayed)  # type: ignore[no-any-return]  # xp is Any


def _of_kind(x: Array, number: float) -> Any:
    return x.dtype.type(number)


_FUNCTIONS: Final[Mapping[str, Callable[[Any, Array, Activation], Array]]] = {
    "Relu": lambda xp, x, _how: xp.maximum(x, _of_kind(x, 0)),
    "Tanh": lambda xp, x, _how: xp.tanh(x),
    "Sigmoid": _sigmoid,
    "Affine": lambda _xp, x, how: x * how.alpha + how.beta,
    "LeakyRelu": lambda xp, x, how: xp.where(x >= 0, x, x * how.alpha),
    "ThresholdedRelu": lambda xp, x, how: xp.where(x >= how.alpha, x, _of_kind(x, 0)),
    "ScaledTanh": lambda xp, x, how: xp.tanh(x * how.beta) * how.alpha,
    "HardSigmoid": lambda xp, x, how: xp.clip(x * how.alpha + how.beta, 0, 1),
    "Elu": lambda xp, x, how: xp.where(x >= 0, x, xp.expm1(xp.minimum(x, _of_kind(x, 0))) * how.alpha),
    "Softsign": lambda xp, x, _how: x / (1 + xp.abs(x)),
    "Softplus": lambda xp, x, _how: xp.maximum(x, _of_kind(x, 0)) + xp.log1p(xp.exp(-xp.abs(x))),
}


def _hard_slope(xp: Any, x: Array, _y: Array, how: Activation) -> Array:
    level = x * how.alpha + how.beta
    inside = (level > 0) & (level < 1)
    return xp.where(inside, _of_kind(x, how.alpha), _of_kind(x, 0))  # type: ignore[no-any-return]  # xp is Any


_SLOPES: Final[Mapping[str, Callable[[Any, Array, Array, Activation], Array]]] = {
    "Relu": lambda _xp, x, _y, _how: (x > 0).astype(x.dtype),
    "Tanh": lambda _xp, _x, y, _how: 1 - y * y,
    "Sigmoid": lambda _xp, _x, y, _how: y * (1 - y),
    "Affine": lambda xp, x, _y, how: xp.full_like(x, how.alpha),
    "LeakyRelu": lambda xp, x, _y, how: xp.where(x >= 0, _of_kind(x, 1), _of_kind(x, how.alpha)),
    "ThresholdedRelu": lambda _xp, x, _y, how: (x >= how.alpha).astype(x.dtype),
    "ScaledTanh": lambda xp, x, _y, how: (1 - xp.tanh(x * how.beta) ** 2) * (how.alpha * how.beta),
    "HardSigmoid": _hard_slope,
    "Elu": lambda xp, x, y, how: xp.where(x >= 0, _of_kind(x, 1), y + how.alpha),
    "Softsign": lambda xp, x, _y, _how: 1 / (1 + xp.abs(x)) ** 2,
    "Softplus": lambda xp, x, _y, how: _sigmoid(xp, x, how),
}


# --- A recurrent layer around its cells: directions, layouts, sequences of different lengths --------------------------
# A cell runs one way over arrays that have time first and the sequence's beginning, as that way sees it, at 0. What
# lies behind a sequence's end is computed with the rest and left out: the state stays, Y is 0, gradients are 0.


@dataclass(frozen=True, slots=True)
class OneWay:
    """What one direction computes with: x (time, batch, inputs), w (gates * hidden, inputs), r (gates * hidden,
    hidden), biases (gates * hidden) of the input and of the state, first states (batch, hidden), peepholes
    (3, hidden). `valid` (time, batch, 1) says which turns are before a sequence's end; None where all are."""

    xp: Any
    x: Array
    w: Array
    r: Array
    input_bias: Array
    state_bias: Array
    states: tuple[Array, ...]
    peepholes: Array | None
    valid: Array | None
    gates: tuple[Gate, ...]
    attributes: Mapping[str, AttributeValue]

    @property
    def hidden(self) -> int:
        return int(self.r.shape[1])

    def held(self, turn: int, new: Array, old: Array) -> Array:
        """`new`, but `old` for sequences that are at their end."""
        return new if self.valid is None else self.xp.where(self.valid[turn], new, old)

    def inside(self, array: Array) -> Array:
        """The array (time, batch, n), zeros behind the sequences' ends."""
        return array if self.valid is None else array * self.valid

    def from_inputs(self) -> Array:
        """(time, batch, gates * hidden): what the inputs of all turns bring to the gates."""
        return self.product(self.x, self.w.T) + self.input_bias

    def product(self, turns: Array, matrix: Array) -> Array:
        """(time, batch, n) times a matrix: one product, and not one for each turn."""
        flat = self.xp.matmul(turns.reshape(-1, turns.shape[-1]), matrix)
        return flat.reshape(*turns.shape[:2], matrix.shape[1])  # type: ignore[no-any-return]  # xp is Any

    def recurrent(self, rows: slice) -> Array:
        """Some gates' rows of r, turned around and laid out for a product in every turn (hidden, rows)."""
        return self.xp.ascontiguousarray(self.r[rows].T)  # type: ignore[no-any-return]  # xp is Any

    def before(self, states: Array) -> Array:
        """States (time, batch, hidden) as each turn found them."""
        return self.xp.concatenate([self.states[0][None], states[:-1]])[: len(states)]  # type: ignore[no-any-return]  # xp is Any


@dataclass(frozen=True, slots=True)
class Flowing:
    """Gradients of one direction's outputs: of its states at each turn, and of those at the end."""

    sequence: Array
    ends: tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class Gradients:
    """Of one direction. `gates` (time, batch, gates * hidden) is of what the inputs bring to the gates."""

    gates: Array
    recurrent: Array
    state_bias: Array
    states: tuple[Array, ...]
    peepholes: Array | None = None


Run = Callable[[OneWay], tuple[Array, tuple[Array, ...]]]
"""A cell's way forward: (states of every turn (time, batch, hidden), states at the end)."""

RunBack = Callable[[OneWay, Array, Flowing], Gradients]
"""A cell's way backwards, given the states of every turn."""


class _Order:
    """The order in which a direction meets a sequence's elements; turning it around twice changes nothing."""

    def __init__(self, xp: Any, backwards: bool, shape: tuple[int, int], lengths: Array | None) -> None:
        time, batch = shape
        self._index: tuple[Array, Array] | None = None
        self._backwards = backwards
        self.valid: Array | None = None
        if lengths is not None:
            turns = np.arange(time)[:, None]
            inside = turns < lengths
            self.valid = xp.asarray(inside[:, :, None])
            places = np.where(inside, lengths - 1 - turns, turns)
            self._index = xp.asarray(places), xp.asarray(np.arange(batch)[None, :])

    def turned(self, array: Array) -> Array:
        if not self._backwards:
            return array
        return array[::-1] if self._index is None else array[self._index]


@dataclass(frozen=True, slots=True)
class _Layer:
    """A node's inputs, with time before the batch and directions before both."""

    xp: Any
    cell: Cell
    inputs: Sequence[Array | None]
    attributes: Mapping[str, AttributeValue]

    @property
    def by_sample(self) -> bool:
        return as_int(self.attributes["layout"]) == 1

    @property
    def x(self) -> Array:
        data = self.inputs[0]
        assert data is not None
        return data.swapaxes(0, 1) if self.by_sample else data

    def ways(self) -> list[tuple[_Order, OneWay]]:
        xp, x, (w, r) = self.xp, self.x, (self.inputs[1], self.inputs[2])
        assert w is not None
        assert r is not None
        lengths = self._lengths(x.shape[0])
        clip = as_float(self.attributes["clip"]) if "clip" in self.attributes else None
        made = []
        for way, backwards in enumerate(DIRECTIONS[as_str(self.attributes["direction"])]):
            order = _Order(xp, backwards, x.shape[:2], lengths)
            input_bias, state_bias = self._biases(way, w)
            functions = activations_of(self.attributes, self.cell)[way]
            one = OneWay(
                xp,
                order.turned(x),
                w[way],
                r[way],
                input_bias,
                state_bias,
                tuple(self._first_state(5 + place, way, r) for place in range(self.cell.states)),
                self._peepholes(way, r),
                order.valid,
                tuple(Gate(xp, function, clip) for function in functions),
                self.attributes,
            )
            made.append((order, one))
        return made

    def _lengths(self, time: int) -> Array | None:
        lengths = optional(self.inputs, 4)
        if lengths is None or bool((lengths == time).all()):
            return None
        if bool(((lengths < 0) | (lengths > time)).any()):
            raise ValueError(f"sequence_lens must be from 0 to {time}, and has {lengths.min()} and {lengths.max()}")
        return lengths

    def _biases(self, way: int, w: Array) -> tuple[Array, Array]:
        bias = optional(self.inputs, 3)
        if bias is None:
            none = self.xp.zeros(w.shape[1], dtype=w.dtype)
            return none, none
        return bias[way, : w.shape[1]], bias[way, w.shape[1] :]

    def _first_state(self, place: int, way: int, r: Array) -> Array:
        given = optional(self.inputs, place)
        if given is None:
            return self.xp.zeros((self.x.shape[1], r.shape[2]), dtype=r.dtype)  # type: ignore[no-any-return]  # xp is Any
        return given[:, way] if self.by_sample else given[way]

    def _peepholes(self, way: int, r: Array) -> Array | None:
        given = optional(self.inputs, 7) if self.cell.has_memory else None
        return None if given is None else given[way].reshape(3, r.shape[2])

    def sequence(self, ways: list[Array]) -> Array:
        """Y of the directions' (time, batch, hidden)."""
        if self.by_sample:
            return self.xp.stack([way.swapaxes(0, 1) for way in ways], axis=2)  # type: ignore[no-any-return]  # xp is Any
        return self.xp.stack(ways, axis=1)  # type: ignore[no-any-return]  # xp is Any

    def of_way(self, sequence: Array, way: int) -> Array:
        """A direction's part of Y."""
        return sequence[:, :, way].swapaxes(0, 1) if self.by_sample else sequence[:, way]

    def state(self, ways: Sequence[Array]) -> Array:
        """Y_h, or the like, of the directions' (batch, hidden)."""
        return self.xp.stack(ways, axis=1 if self.by_sample else 0)  # type: ignore[no-any-return]  # xp is Any


def forward(
    xp: Any, cell: Cell, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue], run: Run
) -> tuple[Array, ...]:
    """Y, Y_h and, of a cell with a memory, Y_c. Raises ValueError for lengths outside the sequences."""
    layer = _Layer(xp, cell, inputs, attributes)
    sequences, ends = [], []
    for order, one in layer.ways():
        states, last = run(one)
        sequences.append(order.turned(one.inside(states)))
        ends.append(last)
    return (layer.sequence(sequences), *(layer.state(states) for states in zip(*ends, strict=True)))


def backward(
    context: KernelContext,
    cell: Cell,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, AttributeValue],
    run_back: RunBack,
) -> tuple[Array, ...]:
    """Gradients of W, R, B, first states and, of a cell with a memory, peepholes; of X last, where it is asked for."""
    xp, flowing = context.xp, inputs[: 1 + cell.states]
    states, given = inputs[1 + cell.states], inputs[2 + cell.states :]
    assert states is not None
    layer = _Layer(xp, cell, given, attributes)
    found: list[Gradients] = []
    by_w, by_bias, by_x = [], [], []
    for way, (order, one) in enumerate(layer.ways()):
        gradients = run_back(one, order.turned(layer.of_way(states, way)), _of_way(layer, flowing, way, order, states))
        flat = gradients.gates.reshape(-1, gradients.gates.shape[-1])
        found.append(gradients)
        by_w.append(xp.matmul(flat.T, one.x.reshape(-1, one.x.shape[-1])))
        by_bias.append(xp.concatenate([flat.sum(axis=0), gradients.state_bias]))
        if context.asks(len(gradient_places(cell)) - 1):
            by_x.append(order.turned(one.product(gradients.gates, one.w)))
    made = [xp.stack(by_w), xp.stack([each.recurrent for each in found]), xp.stack(by_bias)]
    made += [layer.state(ends) for ends in zip(*(each.states for each in found), strict=True)]
    if cell.has_memory:
        none = xp.zeros((3, found[0].recurrent.shape[1]), dtype=states.dtype)
        rows = [none if each.peepholes is None else each.peepholes for each in found]
        made.append(xp.stack([row.reshape(-1) for row in rows]))
    if by_x:
        total = by_x[0] if len(by_x) == 1 else by_x[0] + by_x[1]
        made.append(total.swapaxes(0, 1) if layer.by_sample else total)
    return tuple(made)


def _of_way(layer: _Layer, flowing: Sequence[Array | None], way: int, order: _Order, states: Array) -> Flowing:
    """A direction's gradients, zeros where nothing flows in."""
    sequence, *ends = flowing
    shape = layer.of_way(states, way).shape
    none = layer.xp.zeros(shape[1:], dtype=states.dtype)
    return Flowing(
        layer.xp.zeros(shape, dtype=states.dtype) if sequence is None else order.turned(layer.of_way(sequence, way)),
        tuple(none if end is None else (end[:, way] if layer.by_sample else end[way]) for end in ends),
    )
