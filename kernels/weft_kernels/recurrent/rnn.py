"""A plain recurrent cell: h' = f(x W' + h R' + b)."""

from __future__ import annotations

from weft_kernels.kernel import Array
from weft_kernels.recurrent.layer import Flowing, Gradients, OneWay


def run(one: OneWay) -> tuple[Array, tuple[Array, ...]]:
    """(states of every turn, states at the end)."""
    xp, (gate,), (state,) = one.xp, one.gates, one.states
    brought = one.from_inputs() + one.state_bias
    states = xp.empty((*brought.shape[:2], one.hidden), dtype=brought.dtype)
    recurrent = one.recurrent(slice(None))
    for turn in range(len(states)):
        state = one.held(turn, gate(brought[turn] + xp.matmul(state, recurrent)), state)
        states[turn] = state
    return states, (state,)


def run_back(one: OneWay, states: Array, flowing: Flowing) -> Gradients:
    """Gradients by the states of every turn."""
    xp, (gate,) = one.xp, one.gates
    before = one.before(states)
    level = one.from_inputs() + one.state_bias + one.product(before, one.r.T)
    slope = one.inside(gate.slope(level, gate(level)))
    by_gates = xp.empty_like(level)
    (by_state,) = flowing.ends
    for turn in reversed(range(len(level))):
        by_gates[turn] = (by_state + flowing.sequence[turn]) * slope[turn]
        by_state = one.held(turn, xp.matmul(by_gates[turn], one.r), by_state)
    flat = by_gates.reshape(-1, by_gates.shape[-1])
    by_r = xp.matmul(flat.T, before.reshape(-1, before.shape[-1]))
    return Gradients(by_gates, by_r, flat.sum(axis=0), (by_state,))
