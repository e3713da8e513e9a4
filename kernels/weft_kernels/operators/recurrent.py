"""Recurrent layers: RNN, GRU, LSTM."""

from __future__ import annotations

from dataclasses import dataclass

from weft_graph.attributes import as_int
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.shapes.recurrent import GRU, LSTM, RNN
from weft_kernels.kernel import Array, Attributes, Inputs, KernelContext, Outputs, kernel
from weft_kernels.recurrent import Flowing, Gradients, OneWay, backward, forward

# --- A plain recurrent cell: h' = f(x W' + h R' + b) ------------------------------------------------------------------


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


# --- A gated recurrent unit: gates z (update) and r (reset), and n (what is new): h' = (1 - z) n + z h ----------------


def gru_run(one: OneWay) -> tuple[Array, tuple[Array, ...]]:
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


def gru_run_back(one: OneWay, states: Array, flowing: Flowing) -> Gradients:
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


# ----------------------------------------------------------------------------------------------------------------------
# A long short-term memory: gates i (input), o (output), f (forget), g (what is new): c' = f c + i g, h' = o H(c').
#
# Peepholes let i and f see the memory as the turn finds it, and o as the turn leaves it (Gers, Schraudolph and
# Schmidhuber, "Learning precise timing with LSTM recurrent networks", JMLR 3, 2002).


def lstm_run(one: OneWay) -> tuple[Array, tuple[Array, ...]]:
    """(states of every turn, states at the end)."""
    xp, (gate, new, shown), (state, memory), size = one.xp, one.gates, one.states, one.hidden
    brought, peep = one.from_inputs() + one.state_bias, one.peepholes
    states = xp.empty((*brought.shape[:2], size), dtype=brought.dtype)
    is_coupled, recurrent = _is_coupled(one), one.recurrent(slice(None))
    for turn in range(len(states)):
        i, o, f, g = _parts(brought[turn] + xp.matmul(state, recurrent), size)
        if peep is not None:
            i, f = i + peep[0] * memory, f + peep[2] * memory
        i = gate(i)
        f = 1 - i if is_coupled else gate(f)
        found = f * memory + i * new(g)
        o = gate(o if peep is None else o + peep[1] * found)
        state = one.held(turn, o * shown(found), state)
        memory = one.held(turn, found, memory)
        states[turn] = state
    return states, (state, memory)


def _is_coupled(one: OneWay) -> bool:
    return as_int(one.attributes["input_forget"]) != 0


def _parts(array: Array, size: int) -> tuple[Array, Array, Array, Array]:
    i, o, f, g = (array[..., place * size : (place + 1) * size] for place in range(4))
    return i, o, f, g


@dataclass(frozen=True, slots=True)
class _Turns:
    """What every turn knew, (time, batch, hidden) each: levels of the four gates and what these let through, the
    memory as each turn found it and left it."""

    levels: tuple[Array, Array, Array, Array]
    gates: tuple[Array, Array, Array, Array]
    found: Array
    left: Array


def _again(one: OneWay, before: Array) -> _Turns:
    """All turns once more: one product for all, then the memory turn by turn."""
    xp, (gate, new, _), size, peep = one.xp, one.gates, one.hidden, one.peepholes
    levels = one.from_inputs() + one.state_bias + one.product(before, one.r.T)
    i, o, f, g = _parts(levels, size)
    fresh = new(g)
    opened, kept = gate(i), (None if _is_coupled(one) else gate(f))
    found, left = xp.empty_like(fresh), xp.empty_like(fresh)
    memory = one.states[1]
    for turn in range(len(fresh)):
        found[turn] = memory
        if peep is not None:
            i[turn] += peep[0] * memory
            opened[turn] = gate(i[turn])
            if kept is not None:
                f[turn] += peep[2] * memory
                kept[turn] = gate(f[turn])
        keeping = 1 - opened[turn] if kept is None else kept[turn]
        left[turn] = keeping * memory + opened[turn] * fresh[turn]
        memory = one.held(turn, left[turn], memory)
    if peep is not None:
        o += peep[1] * left
    return _Turns((i, o, f, g), (opened, gate(o), 1 - opened if kept is None else kept, fresh), found, left)


def lstm_run_back(one: OneWay, states: Array, flowing: Flowing) -> Gradients:
    """Gradients by the states of every turn."""
    xp, (gate, new, shown), size, peep = one.xp, one.gates, one.hidden, one.peepholes
    before = one.before(states)
    turns = _again(one, before)
    (i, o, f, g), (i_level, o_level, f_level, g_level) = turns.gates, turns.levels
    through = shown(turns.left)
    by_output = one.inside(through * gate.slope(o_level, o))
    by_memory = one.inside(o * shown.slope(turns.left, through))
    by_new = i * new.slope(g_level, g)
    if _is_coupled(one):
        by_input, by_forget = (g - turns.found) * gate.slope(i_level, i), xp.zeros_like(f)
    else:
        by_input, by_forget = g * gate.slope(i_level, i), turns.found * gate.slope(f_level, f)
    by_input, by_forget, by_new = (one.inside(array) for array in (by_input, by_forget, by_new))
    by_gates = xp.empty((*f.shape[:2], 4 * size), dtype=f.dtype)
    by_state, by_cell = flowing.ends
    for turn in reversed(range(len(f))):
        arriving = by_state + flowing.sequence[turn]
        to_i, to_o, to_f, to_g = _parts(by_gates[turn], size)
        to_o[...] = arriving * by_output[turn]
        here = by_cell + arriving * by_memory[turn]
        if peep is not None:
            here = here + to_o * peep[1]
        to_i[...], to_f[...], to_g[...] = here * by_input[turn], here * by_forget[turn], here * by_new[turn]
        past = here * f[turn]
        if peep is not None:
            past = past + to_i * peep[0] + to_f * peep[2]
        by_cell = one.held(turn, past, by_cell)
        by_state = one.held(turn, xp.matmul(by_gates[turn], one.r), by_state)
    flat = by_gates.reshape(-1, 4 * size)
    by_r = xp.matmul(flat.T, before.reshape(-1, size))
    by_peep = None if peep is None else _by_peepholes(one, by_gates, turns)
    return Gradients(by_gates, by_r, flat.sum(axis=0), (by_state, by_cell), by_peep)


def _by_peepholes(one: OneWay, by_gates: Array, turns: _Turns) -> Array:
    by_i, by_o, by_f, _ = _parts(by_gates, one.hidden)
    sums = [
        (by * memory).sum(axis=(0, 1)) for by, memory in ((by_i, turns.found), (by_o, turns.left), (by_f, turns.found))
    ]
    return one.xp.stack(sums)  # type: ignore[no-any-return]  # xp is Any


@kernel("RNN", host_inputs=(4,), in_float32=("float16", "bfloat16"), waits=(4,))
def rnn(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """A plain recurrent layer: one product for all turns' inputs, and one for each turn's state."""
    return forward(context.xp, RNN, inputs, attributes, run)


@kernel("RNNGrad", domain=WEFT_DOMAIN, host_inputs=(7,), in_float32=("float16", "bfloat16"), waits=(7,))
def rnn_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradients of RNN's inputs: the gates of all turns at once, from the states in Y, and then the turns backwards."""
    return backward(context, RNN, inputs, attributes, run_back)


@kernel("GRU", host_inputs=(4,), in_float32=("float16", "bfloat16"), waits=(4,))
def gru(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gated recurrent units: one product for all turns' inputs, and one for each turn's state."""
    return forward(context.xp, GRU, inputs, attributes, gru_run)


@kernel("GRUGrad", domain=WEFT_DOMAIN, host_inputs=(7,), in_float32=("float16", "bfloat16"), waits=(7,))
def gru_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradients of GRU's inputs: the gates of all turns at once, from the states in Y, and then the turns backwards."""
    return backward(context, GRU, inputs, attributes, gru_run_back)


@kernel("LSTM", host_inputs=(4,), in_float32=("float16", "bfloat16"), waits=(4,))
def lstm(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Long short-term memory: one product for all turns' inputs, and one for each turn's state."""
    return forward(context.xp, LSTM, inputs, attributes, lstm_run)


@kernel("LSTMGrad", domain=WEFT_DOMAIN, host_inputs=(8,), in_float32=("float16", "bfloat16"), waits=(8,))
def lstm_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradients of LSTM's inputs: all gates at once, from the states in Y, then the turns backwards."""
    return backward(context, LSTM, inputs, attributes, lstm_run_back)
