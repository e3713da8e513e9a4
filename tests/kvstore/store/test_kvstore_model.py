"""Random programs of several slots, through the cores of clients and shards, against a store written plainly in NumPy.

Whatever the order in which messages arrive and buckets merge, however often connections break and slots are replaced,
weights and rule state have the bits of the plain store: in sync of the steps in order, in async and stale mode of
the order that the shards logged.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store_cluster import ByName, key_of, slices_on, store_of, watch_added
from store_cluster import given as given_key
from store_simulation import Simulation
from weft_graph.ir import Initializer
from weft_graph.program import Update
from weft_kernels.initializers import first_values
from weft_kvstore.bucket.bucket import Bucket
from weft_kvstore.bucket.steps import BucketSteps, PullWait
from weft_kvstore.description.records import CommitDescription, KeyDescription, Merge, Mode, StoreDescription
from weft_kvstore.errors import StoreRefusedError
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.merger import Merger
from weft_kvstore.tables import TableState
from weft_kvstore.wire.messages import Reading

RATE, MOMENTUM = 0.1, 0.9
IDLE_ROUNDS = 1000
"""Rounds of 10 ms in which nothing happens: far above the retry of a connection."""
Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Ids = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True)
class Program:
    """What each slot does: `nothing` names (slot, step, key) where it has no gradient, `sets` (version, key) where the
    key's first slot sets the value. `many`: dense keys go in one call. `runs`: slots go on before a step has ended."""

    description: StoreDescription
    steps: int
    nothing: frozenset[tuple[int, int, str]] = frozenset()
    sets: frozenset[tuple[int, str]] = frozenset()
    many: bool = False
    runs: bool = False

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
    history: dict[tuple[int, str], bytes] = field(default_factory=dict)
    """The bytes of each version of each key, where it has `run`."""

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
                    gradients = [program.gradient(slot, step, key.key) for slot in slots]
                    is_mean = key.update is Update.MEAN  # whose sum may have no float32
                    totals[key.key] = merged([one.astype(np.float64) for one in gradients] if is_mean else gradients)
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
                self.history[step + 1, key.key] = self.weights[key.key].tobytes()
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
        """By which gradients are multiplied: squares are summed within slices of 16 elements and rows, and
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
                flat, cut = np.square(total, dtype=np.float64).reshape(-1), 16
                sums += [float(flat[low : low + cut].sum()) for low in range(0, flat.size, max(cut, 1))]
        return np.float32(min(1.0, commit.clip_norm / (math.sqrt(math.fsum(sums)) + 1e-6)))

    def _update(self, key: KeyDescription, total: Array | None, contributors: int, factor: np.float32) -> None:
        if key.update is Update.GRADIENT:
            self.weights[key.key] = np.zeros(key.shape, np.float32)
        if total is None:
            return
        if key.update is Update.MEAN:
            self.weights[key.key][...] = total / contributors
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


KINDS = ["rule", "rule", "mean", "gradient", "whole", "table"]
SHAPES = [(), (1,), (3, 5), (40,), (7, 11)]


@st.composite
def programs(draw: st.DrawFn, mode: Mode = Mode.SYNC, merge: Merge = Merge.SLOT) -> Program:
    slots = draw(st.integers(1, 4))
    keys = []
    for number in range(draw(st.integers(1, 6))):
        shape = draw(st.sampled_from(SHAPES))
        kind = draw(st.sampled_from(KINDS if mode is Mode.SYNC else ["rule", "rule", "whole", "table"]))
        table = kind == "table" and bool(shape)
        key = key_of(f"k{number}", shape, slots, priority=draw(st.integers(0, 2)))
        update = Update(kind) if kind in {"mean", "gradient"} else Update.RULE
        contributing = tuple(sorted(draw(st.sets(st.integers(0, slots - 1), min_size=1))))
        key = msgspec.structs.replace(key, slots=contributing, update=update, rows=table, whole=kind == "whole")
        if mode is Mode.STALE:
            key = msgspec.structs.replace(key, staleness=draw(st.sampled_from([None, 0, 1, 2])))
        is_given = update is not Update.GRADIENT and draw(st.booleans())
        keys.append(given_key(key) if is_given else key)
    hyper = {"lr": RATE, "momentum": MOMENTUM}
    description = store_of(
        keys, slots=slots, shards=draw(st.integers(1, 3)), rule="momentum", hyper=hyper, slice_bytes=64, mode=mode
    )
    description = msgspec.structs.replace(description, staleness=draw(st.integers(0, 2)), merge=merge)
    steps = draw(st.integers(1, 4))
    places = [(slot, step, key.key) for key in keys for slot in key.slots for step in range(steps)]
    nothing = frozenset(draw(st.sets(st.sampled_from(places), max_size=6)))
    sets: set[tuple[int, str]] = set()
    for key in keys if mode is Mode.SYNC else []:
        if key.update is not Update.GRADIENT and draw(st.booleans()):  # Of two versions values may wait at once.
            sets |= {(version, key.key) for version in draw(st.sets(st.integers(1, steps), max_size=2))}
    return Program(description, steps, nothing, frozenset(sets), many=draw(st.booleans()), runs=draw(st.booleans()))


def tell(store: ByName, program: Program, version: int, key: KeyDescription) -> list[Any]:
    """Sets the value; rows of a table in two calls."""
    ids, value = program.told(version, key.key)
    if not key.rows:
        return [store.set(key.key, version, value)]
    half = len(ids) // 2
    return [store.set(key.key, version, value[part], ids[part]) for part in (slice(half, None), slice(half))]


class Call(NamedTuple):
    """A call of a step; where it is a pull, of which keys: of the version that the step makes."""

    step: int
    future: Any
    pulled: tuple[str, ...] = ()


def do_step(simulation: Simulation, program: Program, slot: int, step: int, choose: random.Random) -> list[Call]:
    """What a slot does at a step, each key in its turn or the dense ones together."""
    store = simulation.stores[slot]
    own = [key for key in program.description.keys if slot in key.slots]
    nothing = [key.key for key in own if (slot, step, key.key) in program.nothing]
    begun: list[Any] = []
    is_sync: list[KeyDescription] = []
    for key in choose.sample(own, len(own)):
        is_first = key.slots[0] == slot
        if is_first and step == 0 and key.initializer.op_type == "Given":
            begun += tell(store, program, 0, key)
        if is_first and (step + 1, key.key) in program.sets:
            begun += tell(store, program, step + 1, key)
        if key.key in nothing:
            continue
        if key.rows:
            ids, rows = program.rows(slot, step, key.key)
            begun.append(store.push(key.key, step, rows, ids))
        elif program.many:
            is_sync.append(key)
        else:
            begun.append(store.push(key.key, step, program.gradient(slot, step, key.key)))
        if choose.random() < 0.3:
            simulation.step(choose)
    if is_sync:
        gradients = [program.gradient(slot, step, key.key) for key in is_sync]
        begun.append(store.push([key.key for key in is_sync], step, gradients))
    begun.append(store.barrier(step, nothing))
    pulls = values_of(store, own, step + 1, many=program.many)
    return [Call(step, future) for future in begun] + [Call(step, future, tuple(keys)) for keys, future in pulls]


def values_of(store: ByName, keys: list[KeyDescription], version: int, *, many: bool) -> list[tuple[list[str], Any]]:
    """Pulls of a step's values, with the keys of each."""
    dense = [key.key for key in keys if not key.rows] if many else []
    pulls = [([key.key], value_of(store, key, version)) for key in keys if key.key not in dense]
    return [*pulls, (dense, store.pull(dense, version))] if dense else pulls


def value_of(store: ByName, key: KeyDescription, version: int, *, settled: bool = False, state: bool = False) -> Any:
    ids = np.arange(key.shape[0]) if key.rows else None
    return store.pull(key.key, version, ids, settled=settled, state=state)


@dataclass
class Trouble:
    """How often things go wrong while a program is carried out, and how often in all a slot is replaced."""

    cuts: float = 0.0
    replaced: int = 0


@dataclass
class Course:
    """A program while it is carried out: `next` is the step that each slot begins, `open` what it waits for. `plain`:
    what every pull has to have seen."""

    program: Program
    choose: random.Random
    simulation: Simulation
    trouble: Trouble
    plain: PlainStore | None = None
    next: dict[int, int] = field(default_factory=dict)
    open: dict[int, list[Call]] = field(default_factory=dict)
    incarnations: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for slot in range(self.program.description.slots):
            self.next[slot], self.open[slot], self.incarnations[slot] = 0, [], 1

    def run(self) -> None:
        """Each slot pushes what it has, declares what it has not and pulls, in an order of its own, and goes on once
        all of a step has ended; or while it has, at most two steps ahead. Slots run apart by chance."""
        idle = 0
        while any(self.next[slot] < self.program.steps or self.open[slot] for slot in self.next):
            slot = self.choose.choice(sorted(self.next))
            self._hear(slot)
            ahead = self.next[slot] - min((call.step for call in self.open[slot]), default=self.next[slot])
            if self.next[slot] < self.program.steps and ahead <= (2 if self.program.runs else 0):
                self.open[slot] += do_step(self.simulation, self.program, slot, self.next[slot], self.choose)
                self.next[slot] += 1
                continue
            idle = 0 if self.simulation.step(self.choose) else idle + 1
            assert idle < IDLE_ROUNDS, f"the store stands still: {self.open}"
            self._go_wrong()
            self.simulation.now += 0.01

    def _hear(self, slot: int) -> None:
        for call in self.open[slot]:
            if call.future.done():
                with suppress_sets() if self.incarnations[slot] > 1 else nullcontext():
                    call.future.result(0)
                    self._check(slot, call)
        self.open[slot] = [call for call in self.open[slot] if not call.future.done()]

    def _check(self, slot: int, call: Call) -> None:
        """A pull has exactly what all slots had set and pushed by that version, where its slot has not gone on since:
        then slices may be newer."""
        if self.plain is None or not call.pulled or self.program.runs or self.incarnations[slot] > 1:
            return
        found = call.future.result(0)
        for name, value in zip(call.pulled, found if isinstance(found, list) else [found], strict=True):
            expected = self.plain.history[call.step + 1, name]
            assert value.tobytes() == expected, f"slot {slot}, key {name}, version {call.step + 1}"

    def _go_wrong(self) -> None:
        choose, simulation = self.choose, self.simulation
        slots = self.program.description.slots
        if choose.random() < self.trouble.cuts:
            simulation.cut(choose.randrange(slots), choose.randrange(len(simulation.shards)))
        if self.trouble.replaced and choose.random() < 0.02:
            self.trouble.replaced -= 1
            slot = choose.randrange(slots)
            self.incarnations[slot] += 1
            simulation.join(slot, self.incarnations[slot])
            self.open[slot] = []  # The new one knows of nothing, and begins anew: what was merged counts once.
            self.next[slot] = max(0, self.next[slot] - 3)


@contextmanager
def suppress_sets() -> Iterator[None]:
    """A new incarnation sets anew what the old one may have set: it is told where that has passed."""
    try:
        yield
    except StoreRefusedError as error:
        if "the value cannot be set" not in str(error):
            raise


def fit(program: Program, trouble: Trouble) -> Program:
    """What the same program may be where slots are replaced: one that says nothing twice that may count twice."""
    if not trouble.replaced:
        return program
    keys = program.description.keys
    if program.description.mode is not Mode.SYNC:  # Values that are set hold at once, again and again.
        keys = tuple(msgspec.structs.replace(key, initializer=key_of("k", (), 1).initializer) for key in keys)
    return replace(program, description=msgspec.structs.replace(program.description, keys=keys), sets=frozenset())


def carry_out(
    program: Program, choose: random.Random, *, link: LinkSettings, trouble: Trouble, plain: PlainStore | None = None
) -> Simulation:
    simulation = Simulation(program.description, link)
    Course(program, choose, simulation, trouble, plain).run()
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
    for core in simulation.shards:
        assert (core.counts["malformed_messages"], len(core.work.queue)) == (0, 0)


quick = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
seeds = st.integers(0, 1 << 40).map(random.Random)
troubles = st.builds(Trouble, st.sampled_from([0.0, 0.1]), st.sampled_from([0, 0, 2]))
PATIENT = LinkSettings(silence_s=1e6, request_timeout_s=1e9)


@quick
@given(programs(), seeds, troubles, st.booleans())
def test_any_order_of_arrival_gives_the_bits_of_the_plain_store(
    program: Program, choose: random.Random, trouble: Trouble, narrow: bool
) -> None:
    link = LinkSettings(credit_bytes=100 if narrow else None, silence_s=1e6, request_timeout_s=1e9)
    program = fit(program, trouble)
    plain = PlainStore(program).run()
    check_equal(carry_out(program, choose, link=link, trouble=trouble, plain=plain), plain, choose)


@quick
@given(programs(), seeds, st.sampled_from([0.0, 0.1]), st.sampled_from([1e-3, 50.0, 1e9]))
def test_committed_steps_are_clipped_as_one_whatever_arrives_first_and_whichever_connection_breaks(
    program: Program, choose: random.Random, cuts: float, clip_norm: float
) -> None:
    commit = CommitDescription(clip_norm=clip_norm)
    program = replace(program, description=msgspec.structs.replace(program.description, commit=commit))
    plain = PlainStore(program).run()
    check_equal(carry_out(program, choose, link=PATIENT, trouble=Trouble(cuts), plain=plain), plain, choose)


class Logs:
    """What every shard applied, in its order: by shard, bucket and slice (0 of a unit) the slots and their steps."""

    def __init__(self) -> None:
        self.applied: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        self.answered = 0

    def keep(self, simulation: Simulation) -> None:
        for shard, core in enumerate(simulation.shards):
            job = core.job
            for part in job.all_buckets.values():
                watch_added(part, self._of_slices(shard, part.spec.number))

    def _of_slices(self, shard: int, bucket: int) -> Any:
        def applied(slot: int, step: int, first: int, stop: int) -> None:
            for number in range(first, stop):
                self.applied.setdefault((shard, bucket, number), []).append((slot, step))

        return applied

    def check_order(self, program: Program, key: KeyDescription, applied: list[tuple[int, int]]) -> None:
        """Every push exactly once, and each slot's in the order of its steps."""
        pushed = [(slot, step) for slot in key.slots for step in range(program.steps)]
        assert Counter(applied) == Counter(one for one in pushed if (*one, key.key) not in program.nothing)
        for slot in key.slots:
            own = [step for one, step in applied if one == slot]
            assert own == sorted(own)


def replayed(program: Program, simulation: Simulation, logs: Logs) -> PlainStore:
    """The plain store after what each shard logged, in its order."""
    plain = PlainStore(program)
    keys = program.description.keys
    for shard, core in enumerate(simulation.shards):
        job = core.job
        for number, bucket in job.buckets.items():
            part = bucket.spec.partition
            for slice_, (place, index) in enumerate(slices_on(part)):
                applied = logs.applied.get((shard, number, slice_), [])
                logs.check_order(program, keys[place], applied)
                for slot, step in applied:
                    plain.replay(keys[place], slot, step, slice(16 * index, 16 * index + 16))
        for unit in job.tables.values():
            key = program.key(unit.spec.key)
            applied = logs.applied.get((shard, unit.spec.number, 0), [])
            logs.check_order(program, key, applied)
            here = (
                np.arange(unit.shard, key.shape[0], unit.layout.shards) if isinstance(unit, TableState) else slice(None)
            )
            for slot, step in applied:
                plain.replay(key, slot, step, here)
    return plain


def carry_out_logged(program: Program, choose: random.Random, trouble: Trouble) -> tuple[Simulation, Logs]:
    simulation, logs = Simulation(program.description, PATIENT), Logs()
    logs.keep(simulation)
    with pytest.MonkeyPatch.context() as patched:
        watch_answers(patched, program.description, logs)
        Course(program, choose, simulation, trouble).run()
    return simulation, logs


def watch_answers(patched: pytest.MonkeyPatch, description: StoreDescription, logs: Logs) -> None:
    """At the moment of each answer: the asking slot's own steps are in, and no slot is further behind than it may."""
    answer, answer_range = Merger.answer, Merger.answer_range

    def check_answer(wait: PullWait, key: KeyDescription, through: dict[int, int]) -> None:
        logs.answered += 1
        if wait.reading is Reading.SETTLED:
            assert min(through.values()) >= wait.version
            return
        assert through.get(wait.slot, wait.version) >= wait.version
        if description.mode is Mode.STALE:
            staleness = description.staleness if key.staleness is None else key.staleness
            assert min(through.values()) >= wait.version - staleness, "staler than it may be"

    def of_range(merger: Merger, wait: PullWait, bucket: Bucket, first: int, stop: int, version: int) -> None:
        part = bucket.spec.partition
        for number in range(first, stop):
            through = dict(zip(bucket.spec.slots, bucket.added[:, number].tolist(), strict=True))
            check_answer(wait, description.keys[slices_on(part)[number][0]], through)
        answer_range(merger, wait, bucket, first, stop, version)

    def of_unit(merger: Merger, wait: PullWait, version: int, unit: TableState) -> Any:
        key = next(one for one in description.keys if one.key == unit.spec.key)
        through = dict(zip(unit.spec.slots, unit.added[:, 0].tolist(), strict=True))
        check_answer(wait, key, through)
        return answer(merger, wait, version, unit)

    patched.setattr(Merger, "answer_range", of_range)
    patched.setattr(Merger, "answer", of_unit)


@quick
@given(programs(mode=Mode.ASYNC), seeds, troubles)
def test_async_applies_each_push_once_and_in_the_slots_order_and_its_replay_has_its_bits(
    program: Program, choose: random.Random, trouble: Trouble
) -> None:
    program = fit(program, trouble)
    simulation, logs = carry_out_logged(program, choose, trouble)
    check_equal(simulation, replayed(program, simulation, logs), choose)


@quick
@given(programs(mode=Mode.STALE), seeds, troubles)
def test_with_bounded_staleness_no_answer_is_staler_and_the_replay_has_its_bits(
    program: Program, choose: random.Random, trouble: Trouble
) -> None:
    program = fit(program, trouble)
    simulation, logs = carry_out_logged(program, choose, trouble)
    check_equal(simulation, replayed(program, simulation, logs), choose)


@quick
@given(programs(merge=Merge.ARRIVAL), seeds, troubles)
def test_merging_by_arrival_adds_each_push_once_in_the_order_that_is_logged(
    program: Program, choose: random.Random, trouble: Trouble
) -> None:
    """Of slices; and whatever the order, all of it ends."""
    program = fit(program, trouble)
    simulation, logs = Simulation(program.description, PATIENT), Logs()
    logs.keep(simulation)
    Course(program, choose, simulation, trouble).run()
    for (shard, number, slice_), applied in logs.applied.items():
        job = simulation.shards[shard].job
        bucket = job.buckets.get(number)
        if bucket is not None:
            key = program.description.keys[slices_on(bucket.spec.partition)[slice_][0]]
            logs.check_order(program, key, applied)
            assert [step for _, step in applied] == sorted(step for _, step in applied)


def race(mode: Mode, keys: list[KeyDescription]) -> Logs:
    """Slot 0 goes four steps ahead of slot 1, as far as it may."""
    description = store_of(keys, slots=2, shards=1, rule="momentum", hyper={"lr": RATE}, slice_bytes=64, mode=mode)
    description = msgspec.structs.replace(description, staleness=1)
    simulation, logs, choose = Simulation(description, PATIENT), Logs(), random.Random(1)
    program = Program(description, 4)
    with pytest.MonkeyPatch.context() as patched:
        watch_answers(patched, description, logs)
        for step in range(4):
            do_step(simulation, program, 0, step, choose)
            simulation.settle(choose)
        assert all(core.job is not None for core in simulation.shards), "a job has failed, as an answer was wrong"
    return logs


@pytest.mark.parametrize("kind", ["plain", "whole", "table"])
def test_the_watch_tells_a_store_without_its_bound_apart(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """The comparison above can fail: without the bound slot 0 is answered what slot 1 has no part in."""
    keys = [msgspec.structs.replace(key_of("k", (40,), 2), whole=kind == "whole", rows=kind == "table")]
    assert race(Mode.STALE, keys).answered > 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(BucketSteps, "_bound", lambda *_: None)
        with pytest.raises(AssertionError, match="a job has failed, as an answer was wrong"):
            race(Mode.STALE, keys)
    assert "staler than it may be" in caplog.text


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize(("merge", "same"), [(Merge.SLOT, True), (Merge.ARRIVAL, False)])
def test_the_plain_store_tells_merging_by_arrival_apart(merge: Merge, same: bool, rows: bool) -> None:
    """The same program, slots in reverse: without slot order the bits differ, so the comparison above can fail."""
    keys = [msgspec.structs.replace(key_of("k", (200,), 3), rows=rows)]
    hyper = {"lr": RATE, "momentum": MOMENTUM}
    description = store_of(keys, slots=3, shards=1, rule="momentum", hyper=hyper, slice_bytes=64, merge=merge)
    program = Program(description, 1)
    simulation = Simulation(description)
    choose = random.Random(1)
    for slot in (2, 1, 0):
        store = simulation.stores[slot]
        if rows:
            ids, gradient = program.rows(slot, 0, "k")
            future = store.push("k", 0, gradient, ids)
        else:
            future = store.push("k", 0, program.gradient(slot, 0, "k"))
        simulation.finish(choose, future)
    value = value_of(simulation.stores[0], keys[0], 1)
    simulation.finish(choose, value)
    assert (value.result(0).tobytes() == PlainStore(program).run().weights["k"].tobytes()) is same
