"""Random programs of several slots, through the minds of clients and shards, against a store written plainly in NumPy.

Whatever the order in which messages arrive and units merge, and however often connections break, weights and rule
state have the bits of the plain store: in sync of the steps in order, in async of the order that the shards logged.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store_cluster import given as given_key
from store_cluster import key_of, store_of
from store_simulation import Simulation
from weft_graph.ir import Initializer
from weft_graph.program import Update
from weft_kernels.initializers import first_values
from weft_kvstore.async_steps import AsyncSteps
from weft_kvstore.description import CommitDescription, KeyDescription, Merge, Mode, StoreDescription
from weft_kvstore.face import StoreFace
from weft_kvstore.settings import LinkSettings
from weft_kvstore.slice_state import SliceState
from weft_kvstore.table_state import TableState

RATE, MOMENTUM = 0.1, 0.9
IDLE_ROUNDS = 1000
"""Rounds of 10 ms in which nothing happens: far above the retry of a connection."""
Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Ids = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True)
class Program:
    """What each slot does: `nothing` names (slot, step, key) where it has no gradient, `sets` (version, key) where the
    key's first slot sets the value."""

    description: StoreDescription
    steps: int
    nothing: frozenset[tuple[int, int, str]] = frozenset()
    sets: frozenset[tuple[int, str]] = frozenset()

    def key(self, name: str) -> KeyDescription:
        return next(one for one in self.description.keys if one.key == name)

    def gradient(self, slot: int, step: int, key: str) -> Array:
        """Magnitudes differ by 8 orders, so that a sum of three in another order has other bits."""
        return self._drawn(slot, step, key, self.key(key).shape)

    def rows(self, slot: int, step: int, key: str) -> tuple[Ids, Array]:
        """Ids with repetitions and padding, sometimes none, and a gradient for each."""
        shape = self.key(key).shape
        generator = self._generator(slot, step + 500, key)
        ids = generator.integers(-1, shape[0], int(generator.integers(0, 2 * shape[0])))
        return ids, self._drawn(slot, step, key, (len(ids), *shape[1:]))

    def first(self, key: KeyDescription) -> Array:
        """The value at version 0."""
        if key.update is Update.GRADIENT:
            return np.zeros(key.shape, np.float32)
        if key.initializer.op_type == "Given":
            return self.gradient(0, 900, key.key)
        initializer = Initializer(key.initializer.op_type, dict(key.initializer.attributes))
        flat = first_values(initializer, seed=7, key=key.key, start=0, stop=key.size, dtype=np.dtype(np.float32))
        return flat.reshape(key.shape)

    def told(self, version: int, key: str) -> tuple[Ids, Array]:
        """The value that is set at a version: some rows of a table, all of any other key."""
        ids = np.arange(self.key(key).shape[0] if self.key(key).shape else 1)[:: 2 if version else 1]
        value = self.gradient(0, 900 + version, key)
        return ids, value[ids] if self.key(key).rows else value

    def _drawn(self, slot: int, step: int, key: str, shape: tuple[int, ...]) -> Array:
        generator = self._generator(slot, step, key)
        return np.asarray(generator.standard_normal(shape) * 10.0 ** generator.uniform(-4, 4, shape), np.float32)

    def _generator(self, slot: int, step: int, key: str) -> np.random.Generator:
        place = [one.key for one in self.description.keys].index(key)
        return np.random.Generator(np.random.Philox(key=[slot, 1000 * step + place]))


@dataclass
class PlainStore:
    """The oracle: NumPy, one key after the other, no slices, no shards, no messages; rows of a table in a loop."""

    program: Program
    weights: dict[str, Array] = field(default_factory=dict)
    velocities: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in self.program.description.keys:
            self.weights[key.key] = self.program.first(key).copy()
            self.velocities[key.key] = np.zeros(key.shape, np.float32)

    def run(self) -> PlainStore:
        """All steps in order, as in sync."""
        program = self.program
        for step in range(program.steps):
            totals: dict[str, Any] = {}
            for key in program.description.keys:
                slots = [slot for slot in key.slots if (slot, step, key.key) not in program.nothing]
                if key.rows:
                    totals[key.key] = merged_rows([program.rows(slot, step, key.key) for slot in slots])
                else:
                    totals[key.key] = merged([program.gradient(slot, step, key.key) for slot in slots])
            factor = self._factor(totals)
            for key in program.description.keys:
                if key.rows:
                    self._update_rows(key, totals[key.key], factor)
                else:
                    slots = [slot for slot in key.slots if (slot, step, key.key) not in program.nothing]
                    self._update(key, totals[key.key], len(slots), factor)
                if (step + 1, key.key) in program.sets:
                    ids, value = program.told(step + 1, key.key)
                    self.weights[key.key][ids if key.rows else ...] = value
        return self

    def replay(self, key: KeyDescription, slot: int, step: int, part: Any) -> None:
        """One slot's step alone, on a part of the key: elements of the flat value, or rows."""
        if (slot, step, key.key) in self.program.nothing:
            return
        if key.rows:
            ids, rows = self.program.rows(slot, step, key.key)
            here = np.isin(ids, part)
            self._update_rows(key, merged_rows([(ids[here], rows[here])]), np.float32(1))
        else:
            gradient = self.program.gradient(slot, step, key.key).reshape(-1)[part]
            weight, velocity = self.weights[key.key].reshape(-1)[part], self.velocities[key.key].reshape(-1)[part]
            descend(weight, velocity, gradient)

    def _factor(self, totals: dict[str, Any]) -> np.float32:
        """By which gradients are multiplied: squares are summed within slices of 16 elements, whole keys and rows, and
        exactly beyond."""
        commit = self.program.description.commit
        if commit is None or commit.clip_norm is None:
            return np.float32(1)
        sums: list[float] = []
        for key in self.program.description.keys:
            total = totals[key.key]
            if key.rows:
                sums += [float(np.square(row, dtype=np.float64).sum()) for row in total.values()]
            elif total is not None and key.update is not Update.MEAN:
                flat, cut = np.square(total, dtype=np.float64).reshape(-1), total.size if key.whole else 16
                sums += [float(flat[low : low + cut].sum()) for low in range(0, flat.size, max(cut, 1))]
        return np.float32(min(1.0, commit.clip_norm / (math.sqrt(math.fsum(sums)) + 1e-6)))

    def _update(self, key: KeyDescription, total: Array | None, contributors: int, factor: np.float32) -> None:
        if key.update is Update.GRADIENT:
            self.weights[key.key] = np.zeros(key.shape, np.float32)
        if total is None:
            return
        if key.update is Update.MEAN:
            self.weights[key.key][...] = total / np.float32(contributors)
        elif key.update is Update.GRADIENT:
            self.weights[key.key] = total * factor
        else:
            descend(self.weights[key.key], self.velocities[key.key], total * factor)

    def _update_rows(self, key: KeyDescription, totals: dict[int, Array], factor: np.float32) -> None:
        for row, gradient in totals.items():
            descend(self.weights[key.key][row, ...], self.velocities[key.key][row, ...], gradient * factor)


def merged(gradients: list[Array]) -> Array | None:
    """The sum in slot order; None of none."""
    if not gradients:
        return None
    total = gradients[0]
    for gradient in gradients[1:]:
        total = total + gradient
    return total


def merged_rows(pushes: list[tuple[Ids, Array]]) -> dict[int, Array]:
    """The sums of each row, of a slot's own first."""
    totals: dict[int, Array] = {}
    for ids, rows in pushes:
        own: dict[int, Array] = {}
        for row, gradient in zip(ids.tolist(), rows, strict=True):
            if row >= 0:
                own[row] = own[row] + gradient if row in own else gradient
        for row, gradient in own.items():
            totals[row] = totals[row] + gradient if row in totals else gradient
    return totals


def descend(weight: Array, velocity: Array, gradient: Array) -> None:
    velocity[...] = velocity * np.float32(MOMENTUM) + gradient
    weight[...] = weight - velocity * np.float32(RATE)


SHAPES = [(), (1,), (3, 5), (40,), (7, 11)]


@st.composite
def programs(draw: st.DrawFn, mode: Mode = Mode.SYNC) -> Program:
    slots = draw(st.integers(1, 4))
    keys = []
    for number in range(draw(st.integers(1, 4))):
        shape = draw(st.sampled_from(SHAPES))
        kind = draw(st.sampled_from(["rule", "mean", "gradient", "whole", "table"] if mode is Mode.SYNC else "rt"))
        table = kind in {"table", "t"} and bool(shape)
        key = key_of(f"k{number}", shape, slots, priority=draw(st.integers(0, 2)))
        update = Update(kind) if kind in {"mean", "gradient"} else Update.RULE
        contributing = tuple(sorted(draw(st.sets(st.integers(0, slots - 1), min_size=1))))
        key = msgspec.structs.replace(key, slots=contributing, update=update, rows=table, whole=kind == "whole")
        is_given = update is not Update.GRADIENT and draw(st.booleans())
        keys.append(given_key(key) if is_given else key)
    hyper = {"rate": RATE, "momentum": MOMENTUM}
    description = store_of(
        keys, slots=slots, shards=draw(st.integers(1, 3)), rule="momentum", hyper=hyper, slice_bytes=64, mode=mode
    )
    steps = draw(st.integers(1, 3))
    places = [(slot, step, key.key) for key in keys for slot in key.slots for step in range(steps)]
    nothing = frozenset(draw(st.sets(st.sampled_from(places), max_size=6)))
    told = [(version, key.key) for key in keys for version in range(1, steps + 1) if key.update is not Update.GRADIENT]
    sets = draw(st.sets(st.sampled_from(told), max_size=2)) if told and mode is Mode.SYNC else set()
    return Program(description, steps, nothing, frozenset(sets))


def tell(store: StoreFace, program: Program, version: int, key: KeyDescription) -> list[Any]:
    """Sets the value; rows of a table in two calls."""
    ids, value = program.told(version, key.key)
    if not key.rows:
        return [store.set(key.key, version, value)]
    half = len(ids) // 2
    return [store.set_rows(key.key, version, ids[part], value[part]) for part in (slice(half, None), slice(half))]


def do_step(simulation: Simulation, program: Program, slot: int, step: int, choose: random.Random) -> list[Any]:
    """What a slot does at a step, each key in its turn; the futures."""
    store = simulation.stores[slot]
    own = [key for key in program.description.keys if slot in key.slots]
    nothing = [key.key for key in own if (slot, step, key.key) in program.nothing]
    begun: list[Any] = []
    for key in choose.sample(own, len(own)):
        is_first = key.slots[0] == slot
        if is_first and step == 0 and key.initializer.op_type == "Given":
            begun += tell(store, program, 0, key)
        if is_first and (step + 1, key.key) in program.sets:
            begun += tell(store, program, step + 1, key)
        if key.key in nothing:
            continue
        if key.rows:
            begun.append(store.push_rows(key.key, step, *program.rows(slot, step, key.key)))
        else:
            begun.append(store.push(key.key, step, program.gradient(slot, step, key.key)))
        if choose.random() < 0.3:
            simulation.step(choose)
    begun.append(store.barrier(step, nothing))
    return begun + [value_of(store, key, step + 1) for key in own]


def value_of(store: StoreFace, key: KeyDescription, version: int, *, settled: bool = False, state: bool = False) -> Any:
    if not key.rows:
        call = store.pull_state if state else store.pull
        return call(key.key, version, settled=settled)
    pull = store.pull_state_rows if state else store.pull_rows
    return pull(key.key, np.arange(key.shape[0]), version, settled=settled)


def carry_out(program: Program, choose: random.Random, *, cuts: bool, link: LinkSettings) -> Simulation:
    """Each slot pulls at step s, pushes what it has, declares what it has not, in an order of its own."""
    simulation = Simulation(program.description, link)
    ahead = [(slot, step) for slot in range(program.description.slots) for step in range(program.steps)]
    waiting: list[tuple[int, Any]] = []
    idle = 0
    while ahead:
        # A slot's steps in order; slots run apart by chance, as far as the store lets them.
        slot = choose.choice(sorted({slot for slot, _ in ahead}))
        step = min(step for one, step in ahead if one == slot)
        if any(one == slot and not future.done() for one, future in waiting):
            idle = 0 if simulation.step(choose) else idle + 1
            assert idle < IDLE_ROUNDS, f"the store stands still at slot {slot}, step {step}"
            if cuts and choose.random() < 0.1:
                simulation.cut(choose.randrange(program.description.slots), choose.randrange(len(simulation.shards)))
            simulation.now += 0.01
            continue
        for one, future in waiting:
            if one == slot:
                future.result(0)
        waiting = [(one, future) for one, future in waiting if one != slot]
        ahead.remove((slot, step))
        waiting += [(slot, future) for future in do_step(simulation, program, slot, step, choose)]
    simulation.finish(choose, *(future for _, future in waiting))
    for _, future in waiting:
        future.result(0)
    return simulation


def check_equal(simulation: Simulation, plain: PlainStore, choose: random.Random) -> None:
    for key in plain.program.description.keys:
        store = simulation.stores[key.slots[0]]
        value = value_of(store, key, plain.program.steps, settled=True)
        state = value_of(store, key, plain.program.steps, settled=True, state=True)
        simulation.finish(choose, value, state)
        assert value.result(0).tobytes() == plain.weights[key.key].tobytes(), key.key
        names = ["momentum"] if key.update is Update.RULE else []
        assert list(state.result(0)) == names
        if names:
            assert state.result(0)["momentum"].tobytes() == plain.velocities[key.key].tobytes(), key.key
    for mind in simulation.shards:
        assert (mind.counts.malformed, mind.counts.refused, len(mind.work)) == (0, 0, 0)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs(), st.randoms(use_true_random=False), st.booleans(), st.booleans())
def test_any_order_of_arrival_gives_the_bits_of_the_plain_store(
    program: Program, choose: random.Random, cuts: bool, narrow: bool
) -> None:
    link = LinkSettings(credit_bytes=100 if narrow else None, silence_s=1e6, request_timeout_s=1e9)
    simulation = carry_out(program, choose, cuts=cuts, link=link)
    check_equal(simulation, PlainStore(program).run(), choose)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs(), st.randoms(use_true_random=False), st.booleans(), st.sampled_from([1e-3, 50.0, 1e9]))
def test_committed_steps_are_clipped_as_one_whatever_arrives_first_and_whichever_connection_breaks(
    program: Program, choose: random.Random, cuts: bool, clip_norm: float
) -> None:
    commit = CommitDescription(clip_norm=clip_norm)
    program = replace(program, description=msgspec.structs.replace(program.description, commit=commit))
    simulation = carry_out(program, choose, cuts=cuts, link=LinkSettings(silence_s=1e6, request_timeout_s=1e9))
    check_equal(simulation, PlainStore(program).run(), choose)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs(mode=Mode.ASYNC), st.randoms(use_true_random=False), st.booleans())
def test_async_applies_each_push_once_and_in_the_slots_order_and_its_replay_has_its_bits(
    program: Program, choose: random.Random, cuts: bool
) -> None:
    log: list[tuple[object, int, int]] = []
    advance = AsyncSteps.advance

    def logged(steps: AsyncSteps[Any]) -> None:
        log.append((steps, *steps.arrived[0]))
        advance(steps)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(AsyncSteps, "advance", logged)
        link = LinkSettings(silence_s=1e6, request_timeout_s=1e9)
        simulation = carry_out(program, choose, cuts=cuts, link=link)
    plain = PlainStore(program)
    keys = program.description.keys
    for mind in simulation.shards:
        for place, key in enumerate(keys):
            for unit in next(iter(mind.jobs.values())).shard.units(place):
                applied = [(slot, step) for steps, slot, step in log if steps is unit.steps]
                assert Counter(applied) == Counter((slot, step) for slot in key.slots for step in range(program.steps))
                for slot in key.slots:
                    assert [step for one, step in applied if one == slot] == list(range(program.steps))
                for slot, step in applied:
                    plain.replay(key, slot, step, part_of(unit, key))
    check_equal(simulation, plain, choose)


def part_of(unit: Any, key: KeyDescription) -> Any:
    """What of the key a unit of a shard has."""
    if isinstance(unit, TableState):
        return np.arange(unit.shard, key.shape[0], unit.cut.shards)
    assert isinstance(unit, SliceState)
    return slice(unit.index * 16, unit.index * 16 + unit.weight.array.size)


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize(("merge", "same"), [(Merge.SLOT, True), (Merge.ARRIVAL, False)])
def test_the_plain_store_tells_merging_by_arrival_apart(merge: Merge, same: bool, rows: bool) -> None:
    """The same program, slots in reverse: without slot order the bits differ, so the comparison above can fail."""
    keys = [msgspec.structs.replace(key_of("k", (200,), 3), rows=rows)]
    hyper = {"rate": RATE, "momentum": MOMENTUM}
    description = store_of(keys, slots=3, shards=1, rule="momentum", hyper=hyper, slice_bytes=64, merge=merge)
    program = Program(description, 1)
    simulation = Simulation(description)
    choose = random.Random(1)
    for slot in (2, 1, 0):
        store = simulation.stores[slot]
        if rows:
            future = store.push_rows("k", 0, *program.rows(slot, 0, "k"))
        else:
            future = store.push("k", 0, program.gradient(slot, 0, "k"))
        simulation.finish(choose, future)
    value = value_of(simulation.stores[0], keys[0], 1)
    simulation.finish(choose, value)
    assert (value.result(0).tobytes() == PlainStore(program).run().weights["k"].tobytes()) is same
