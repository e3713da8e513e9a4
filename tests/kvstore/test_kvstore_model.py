"""Random programs of several slots, through the minds of clients and shards, against a store written plainly in NumPy.

Whatever the order in which messages arrive and slices merge, and however often connections break, weights and rule
state have the bits of the plain store.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store_cluster import key_of, store_of
from store_simulation import Simulation
from weft_graph.ir import Initializer
from weft_graph.program import Update
from weft_kernels.initializers import first_values
from weft_kvstore.description import Merge, StoreDescription
from weft_kvstore.settings import LinkSettings

RATE, MOMENTUM = 0.1, 0.9
IDLE_ROUNDS = 1000
"""Rounds of 10 ms in which nothing happens: far above the retry of a connection."""
Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


@dataclass(frozen=True)
class Program:
    """What each slot does: `nothing` names (slot, step, key) where it has no gradient."""

    description: StoreDescription
    steps: int
    nothing: frozenset[tuple[int, int, str]]

    def gradient(self, slot: int, step: int, key: str) -> Array:
        """Magnitudes differ by 8 orders, so that a sum of three in another order has other bits."""
        place = [one.key for one in self.description.keys].index(key)
        generator = np.random.Generator(np.random.Philox(key=[slot, 1000 * step + place]))
        shape = self.description.keys[place].shape
        scale = 10.0 ** generator.uniform(-4, 4, shape)
        return np.asarray(generator.standard_normal(shape) * scale, np.float32)


class PlainStore:
    """The oracle: NumPy, one key after the other, no slices, no shards, no messages."""

    def __init__(self, program: Program) -> None:
        description = program.description
        self.weights: dict[str, Array] = {}
        self.velocities: dict[str, Array] = {}
        for key in description.keys:
            initializer = Initializer(key.initializer.op_type, dict(key.initializer.attributes))
            flat = first_values(initializer, seed=7, key=key.key, start=0, stop=key.size, dtype=np.dtype(np.float32))
            self.weights[key.key] = flat.reshape(key.shape)
            self.velocities[key.key] = np.zeros(key.shape, np.float32)
        for step in range(program.steps):
            for key in description.keys:
                slots = [slot for slot in key.slots if (slot, step, key.key) not in program.nothing]
                given_in = [program.gradient(slot, step, key.key) for slot in slots]
                if given_in:
                    self._apply(key.key, key.update, given_in)

    def _apply(self, key: str, update: Update, gradients: list[Array]) -> None:
        total = gradients[0]
        for gradient in gradients[1:]:
            total = total + gradient
        if update is Update.MEAN:
            self.weights[key] = total / np.float32(len(gradients))
            return
        velocity = self.velocities[key] * np.float32(MOMENTUM) + total
        self.velocities[key] = velocity
        self.weights[key] = self.weights[key] - velocity * np.float32(RATE)


@st.composite
def programs(draw: st.DrawFn, least_slots: int = 1) -> Program:
    slots = draw(st.integers(least_slots, 4))
    shapes = draw(st.lists(st.sampled_from([(), (1,), (3, 5), (40,), (7, 11)]), min_size=1, max_size=4))
    keys = []
    for number, shape in enumerate(shapes):
        contributing = tuple(sorted(draw(st.sets(st.integers(0, slots - 1), min_size=1))))
        update = draw(st.sampled_from([Update.RULE, Update.RULE, Update.MEAN]))
        key = key_of(f"k{number}", shape, slots, priority=draw(st.integers(0, 2)))
        keys.append(msgspec.structs.replace(key, slots=contributing, update=update))
    hyper = {"rate": RATE, "momentum": MOMENTUM}
    shards = draw(st.integers(1, 3))
    description = store_of(keys, slots=slots, shards=shards, rule="momentum", hyper=hyper, slice_bytes=64)
    steps = draw(st.integers(1, 3))
    places = [(slot, step, key.key) for key in keys for slot in key.slots for step in range(steps)]
    nothing = frozenset(draw(st.sets(st.sampled_from(places), max_size=6)))
    return Program(description, steps, nothing)


def carry_out(program: Program, choose: random.Random, *, cuts: bool, link: LinkSettings) -> Simulation:
    """Each slot pulls at step s, pushes what it has, declares what it has not, in an order of its own."""
    simulation = Simulation(program.description, link)
    keys = program.description.keys
    ahead = [(slot, step) for slot in range(program.description.slots) for step in range(program.steps)]
    waiting = []
    idle = 0
    while ahead:
        # A slot's steps in order; slots run apart by chance, as far as the store lets them.
        slot = choose.choice(sorted({slot for slot, _ in ahead}))
        step = min(step for one, step in ahead if one == slot)
        store = simulation.stores[slot]
        if any(one == slot and not future.done() for one, future in waiting):
            idle = 0 if simulation.step(choose) else idle + 1
            assert idle < IDLE_ROUNDS, f"the store stands still at slot {slot}, step {step}"
            if cuts and choose.random() < 0.1:
                simulation.cut(choose.randrange(program.description.slots), choose.randrange(len(simulation.shards)))
            simulation.now += 0.01
            continue
        waiting = [(one, future) for one, future in waiting if one != slot]
        ahead.remove((slot, step))
        own = [key for key in keys if slot in key.slots]
        nothing = [key.key for key in own if (slot, step, key.key) in program.nothing]
        for key in choose.sample(own, len(own)):
            if key.key not in nothing:
                waiting.append((slot, store.push(key.key, step, program.gradient(slot, step, key.key))))
            if choose.random() < 0.3:
                simulation.step(choose)
        waiting.append((slot, store.barrier(step, nothing)))
        waiting += [(slot, store.pull(key.key, step + 1)) for key in own]
    simulation.finish(choose, *(future for _, future in waiting))
    for _, future in waiting:
        future.result(0)
    return simulation


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs(), st.randoms(use_true_random=False), st.booleans(), st.booleans())
def test_any_order_of_arrival_gives_the_bits_of_the_plain_store(
    program: Program, choose: random.Random, cuts: bool, narrow: bool
) -> None:
    link = LinkSettings(credit_bytes=100 if narrow else None, silence_s=1e6, request_timeout_s=1e9)
    simulation = carry_out(program, choose, cuts=cuts, link=link)
    plain = PlainStore(program)
    for key in program.description.keys:
        store = simulation.stores[key.slots[0]]
        value = store.pull(key.key, program.steps)
        state = store.pull_state(key.key, program.steps)
        simulation.finish(choose, value, state)
        assert value.result(0).tobytes() == plain.weights[key.key].tobytes()
        names = ["momentum"] if key.update is Update.RULE else []
        assert list(state.result(0)) == names
        if names:
            assert state.result(0)["momentum"].tobytes() == plain.velocities[key.key].tobytes()
    for mind in simulation.shards:
        assert (mind.counts.malformed, mind.counts.refused, len(mind.work)) == (0, 0, 0)


@pytest.mark.parametrize(("merge", "same"), [(Merge.SLOT, True), (Merge.ARRIVAL, False)])
def test_the_plain_store_tells_merging_by_arrival_apart(merge: Merge, same: bool) -> None:
    """The same program, slots in reverse: without slot order the bits differ, so the comparison above can fail."""
    keys = [key_of("k", (200,), 3)]
    hyper = {"rate": RATE, "momentum": MOMENTUM}
    description = store_of(keys, slots=3, shards=1, rule="momentum", hyper=hyper, slice_bytes=64, merge=merge)
    program = Program(description, 1, frozenset())
    simulation = Simulation(description)
    choose = random.Random(1)
    for slot in (2, 1, 0):
        future = simulation.stores[slot].push("k", 0, program.gradient(slot, 0, "k"))
        simulation.finish(choose, future)
    value = simulation.stores[0].pull("k", 1)
    simulation.finish(choose, value)
    assert (value.result(0).tobytes() == PlainStore(program).weights["k"].tobytes()) is same
