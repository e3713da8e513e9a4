"""A long short-term memory: gates i (input), o (output), f (forget), g (what is new): c' = f c + i g, h' = o H(c').

Peepholes let i and f see the memory as the turn finds it, and o as the turn leaves it (Gers, Schraudolph and
Schmidhuber, "Learning precise timing with LSTM recurrent networks", JMLR 3, 2002).
"""

from __future__ import annotations

from dataclasses import dataclass

from weft_graph.attributes import as_int
from weft_kernels.kernel import Array
from weft_kernels.recurrent.layer import Flowing, Gradients, OneWay


def run(one: OneWay) -> tuple[Array, tuple[Array, ...]]:
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


def run_back(one: OneWay, states: Array, flowing: Flowing) -> Gradients:
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
