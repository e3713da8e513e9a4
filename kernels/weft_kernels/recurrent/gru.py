"""A gated recurrent unit: gates z (update) and r (reset), and n (what is new): h' = (1 - z) n + z h."""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_kernels.kernel import Array
from weft_kernels.recurrent.layer import Flowing, Gradients, OneWay


def run(one: OneWay) -> tuple[Array, tuple[Array, ...]]:
    """(states of every turn, states at the end)."""
    xp, (gate, new), (state,), size = one.xp, one.gates, one.states, one.hidden
    brought = one.from_inputs()
    brought[..., : 2 * size] += one.state_bias[: 2 * size]
    r_gates, r_new = one.recurrent(slice(2 * size)), one.recurrent(slice(2 * size, None))
    bias = one.state_bias[2 * size :]
    states = xp.empty((*brought.shape[:2], size), dtype=brought.dtype)
    for turn in range(len(states)):
        gates = gate(brought[turn, :, : 2 * size] + xp.matmul(state, r_gates))
        update, reset = gates[:, :size], gates[:, size:]
        if _is_linear_first(one):
            level = reset * (xp.matmul(state, r_new) + bias)
        else:
            level = xp.matmul(reset * state, r_new) + bias
        level = new(level + brought[turn, :, 2 * size :])
        state = one.held(turn, level + update * (state - level), state)
        states[turn] = state
    return states, (state,)


def _is_linear_first(one: OneWay) -> bool:
    return as_int(one.attributes["linear_before_reset"]) != 0


def run_back(one: OneWay, states: Array, flowing: Flowing) -> Gradients:
    """Gradients by the states of every turn."""
    xp, (gate, new), size = one.xp, one.gates, one.hidden
    r_gates, r_new, bias = one.r[: 2 * size], one.r[2 * size :], one.state_bias[2 * size :]
    before, linear_first = one.before(states), _is_linear_first(one)
    brought = one.from_inputs()
    level = brought[..., : 2 * size] + one.state_bias[: 2 * size] + one.product(before, r_gates.T)
    gates = gate(level)
    slopes = one.inside(gate.slope(level, gates))
    update, reset = gates[..., :size], gates[..., size:]
    kept = one.product(before if linear_first else reset * before, r_new.T) + bias
    level = brought[..., 2 * size :] + (reset * kept if linear_first else kept)
    fresh = new(level)
    by_update = (before - fresh) * slopes[..., :size]
    by_fresh = one.inside((1 - update) * new.slope(level, fresh))
    by_reset = (kept if linear_first else before) * slopes[..., size:]
    by_gates = xp.empty_like(brought)
    (by_state,) = flowing.ends
    for turn in reversed(range(len(level))):
        arriving, here = by_state + flowing.sequence[turn], by_gates[turn]
        here[:, :size] = arriving * by_update[turn]
        here[:, 2 * size :] = arriving * by_fresh[turn]
        if linear_first:
            here[:, size : 2 * size] = here[:, 2 * size :] * by_reset[turn]
            through = xp.matmul(here[:, 2 * size :] * reset[turn], r_new)
        else:
            through = xp.matmul(here[:, 2 * size :], r_new)
            here[:, size : 2 * size] = through * by_reset[turn]
            through = through * reset[turn]
        past = arriving * update[turn] + through + xp.matmul(here[:, : 2 * size], r_gates)
        by_state = one.held(turn, past, by_state)
    return _gathered(one, by_gates, before, reset, by_state)


def _gathered(one: OneWay, by_gates: Array, before: Array, reset: Array, by_state: Array) -> Gradients:
    """Sums over turns and samples."""
    xp, size, linear_first = one.xp, one.hidden, _is_linear_first(one)
    by_new = by_gates[..., 2 * size :] * reset if linear_first else by_gates[..., 2 * size :]
    flat = by_gates[..., : 2 * size].reshape(-1, 2 * size)
    flat_new, flat_before = by_new.reshape(-1, size), before.reshape(-1, size)
    multiplied = flat_before if linear_first else (reset * before).reshape(-1, size)
    by_r = xp.concatenate([xp.matmul(flat.T, flat_before), xp.matmul(flat_new.T, multiplied)])
    return Gradients(by_gates, by_r, xp.concatenate([flat.sum(axis=0), flat_new.sum(axis=0)]), (by_state,))
