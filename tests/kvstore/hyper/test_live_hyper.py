"""Hyper-parameters that change while a job runs: from a step on, on every shard."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from types import FrameType
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_cluster import WAIT_S, ByName, constant, key_of, store_of, stores_of, table_of
from store_raw import hello_of
from store_simulation import Simulation
from weft_graph.program import Update
from weft_kvstore import hyper as hyper_module
from weft_kvstore.description.check import DescriptionError
from weft_kvstore.description.form import Key, describe
from weft_kvstore.description.records import Mode, StoreDescription
from weft_kvstore.errors import StoreRefusedError, StoreTimeoutError
from weft_kvstore.hyper import HyperTimeline
from weft_kvstore.library.kvstore import CHANGES_KEPT, KVStore
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.core import ShardCore
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.wire.codec import decode_reply, encode
from weft_kvstore.wire.messages import Done, Failed, Hyper, Message, Refused, Welcome

KEYS = ("a", "b", "c", "whole")

STEPS = 6


def described(slots: int, shards: int, *, mode: Mode = Mode.SYNC, **changes: Any) -> StoreDescription:
    """SGD from zero with gradients of one: a value is minus the sum of its rates, times the slots."""
    keys = [constant(key_of(name, (9,), slots), 0.0) for name in KEYS]
    keys[-1] = msgspec.structs.replace(keys[-1], whole=True)
    keys.append(constant(table_of("t", (8, 3), slots), 0.0))
    description = store_of(keys, slots=slots, shards=shards, rule="sgd", hyper={"lr": 1.0}, slice_bytes=8, mode=mode)
    return msgspec.structs.replace(description, **changes)


class Training:
    """Every slot pushes one of everything, step by step, as far as it can."""

    def __init__(self, simulation: Simulation, choose: random.Random) -> None:
        self.simulation = simulation
        self.choose = choose
        self.steps = [0] * simulation.description.slots
        self.pushed: list[list[list[Future[None]]]] = [[] for _ in self.steps]

    def push(self, slot: int) -> None:
        """The slot's next step, if no other slot is so far behind that it would be refused."""
        step, store = self.steps[slot], self.simulation.stores[slot]
        taken = [sum(all(one.done() for one in push) for push in pushes) for pushes in self.pushed]
        if step == STEPS or step > min(taken) + 1:
            return
        self.steps[slot] += 1
        pushed = [store.push(name, step, np.ones(9, np.float32)) for name in KEYS]
        pushed.append(store.push("t", step, np.ones((8, 3), np.float32), np.arange(8)))
        self.pushed[slot].append(pushed)

    def values(self, version: int) -> dict[str, np.ndarray]:
        store = self.simulation.stores[0]
        pulls = {name: store.pull(name, version, settled=True) for name in KEYS}
        pulls["t"] = store.pull("t", version, np.arange(8), settled=True)
        self.simulation.finish(self.choose, *pulls.values())
        return {name: pull.result(0) for name, pull in pulls.items()}


def rates_used(value: np.ndarray, slots: int) -> float:
    assert np.all(value == value.flat[0]), "slices of one key have used different rates"
    return float(-value.flat[0] / slots)


@pytest.mark.parametrize("seed", range(30))
def test_all_shards_use_a_changed_rate_from_its_step_on(seed: int) -> None:
    """Slots train, change the rate at steps of their own choice and lose connections. Every slice of every key on every
    shard uses the rate of the highest slot that has changed it last, whatever came first."""
    choose = random.Random(seed)
    slots, shards = choose.choice([(1, 1), (2, 3), (3, 2)])
    simulation = Simulation(described(slots, shards), LinkSettings(silence_s=1000.0, request_timeout_s=2000.0))
    training = Training(simulation, choose)
    changes: list[tuple[int, int, float]] = []
    futures: list[Future[int]] = []
    while min(training.steps) < STEPS:
        slot = choose.randrange(slots)
        training.push(slot)
        if choose.random() < 0.4:
            step = training.steps[slot] + choose.choice([0, 0, 1, 3])
            changes.append((step, slot, 1.0 + len(changes) / 8))
            futures.append(simulation.stores[slot].set_hyper({"lr": changes[-1][2]}, step=step))
        for _ in range(choose.randrange(40)):
            simulation.step(choose)
        if choose.random() < 0.3:
            simulation.cut(choose.randrange(slots), choose.randrange(shards))
            simulation.now += 0.5
    simulation.finish(choose, *futures)
    assert [future.result(0) for future in futures] == [step for step, _, _ in changes]
    expected = [1.0] * STEPS
    for step, _, lr in sorted(changes, key=lambda one: one[:2]):
        expected[step:] = [lr] * len(expected[step:])
    for name, value in training.values(STEPS).items():
        assert rates_used(value, slots) == sum(expected), name


def replaced(simulation: Simulation, training: Training, slot: int, step: int) -> ByName:
    """A new process of the slot, which goes on from a step."""
    training.steps[slot] = step
    training.pushed[slot] = [[]] * step
    return simulation.join(slot, incarnation=2)


def push_all(training: Training, *slots: int) -> None:
    for slot in slots:
        training.push(slot)
    training.simulation.settle(training.choose)


@pytest.mark.parametrize("messages", range(0, 60, 3))
def test_what_a_slot_has_changed_goes_with_its_pushes_where_a_new_process_takes_over(messages: int) -> None:
    """However much of it had come: nothing of step 1 applies, for the other slot has not pushed it."""
    choose = random.Random(messages)
    simulation = Simulation(described(2, 3))
    simulation.settle(choose)
    training = Training(simulation, choose)
    push_all(training, 0, 1)
    for step in (1, 2, 9):
        simulation.stores[1].set_hyper({"lr": 100.0}, step=step)
    training.push(1)
    for _ in range(messages):
        simulation.step(choose)
    replaced(simulation, training, 1, 1).set_hyper({"lr": 0.25}, step=2)
    simulation.settle(choose)
    for _ in range(STEPS):
        push_all(training, 0, 1)
    for name, value in training.values(STEPS).items():
        assert rates_used(value, 2) == 1.0 + 1.0 + 0.25 * (STEPS - 2), name


def test_what_a_slot_has_changed_stays_where_its_pushes_count() -> None:
    """Those of step 1 are applied, or of the table in the sum: slot 0 is added first."""
    choose = random.Random(1)
    simulation = Simulation(described(2, 3))
    training = Training(simulation, choose)
    push_all(training, 0, 1)
    simulation.stores[0].set_hyper({"lr": 0.5}, step=1)
    simulation.stores[0].set_hyper({"lr": 100.0}, step=3)
    push_all(training, 0)
    replaced(simulation, training, 0, 1)
    push_all(training, 0, 1)
    replaced(simulation, training, 1, 2)
    push_all(training, 0, 1)
    for name, value in training.values(3).items():
        assert rates_used(value, 2) == 1.0 + 0.5 + 0.5, name


def test_a_change_that_fails_at_its_deadline_still_comes_before_the_pushes_of_its_step() -> None:
    choose = random.Random(2)
    simulation = Simulation(described(1, 2), LinkSettings(silence_s=100.0, request_timeout_s=5.0))
    simulation.settle(choose)
    training = Training(simulation, choose)
    simulation.cut(0, 1)
    change = simulation.stores[0].set_hyper({"lr": 0.5}, step=0)
    while not change.done():
        simulation.step(choose)
        simulation.now += 0.25
        simulation.connections.pop((0, 1), None)
    with pytest.raises(StoreTimeoutError, match=r"slot 0: change of lr to 0\.5 for all keys, step 0 took over 5 s"):
        change.result(0)
    push_all(training, 0)
    for name, value in training.values(1).items():
        assert rates_used(value, 1) == 0.5, name


def run(store: ByName, keys: Sequence[str], steps: range) -> None:
    for step in steps:
        for key in keys:
            store.push(key, step, np.ones(9, np.float32)).result(WAIT_S)
        store.push("t", step, np.ones((8, 3), np.float32), np.arange(8)).result(WAIT_S)


def summed(store: ByName, key: str, version: int) -> float:
    if key == "t":
        return rates_used(store.pull("t", version, np.arange(8)).result(WAIT_S), 1)
    return rates_used(store.pull(key, version).result(WAIT_S), 1)


@pytest.fixture(params=["network", "local"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[[StoreDescription], ByName]]:
    with ExitStack() as stack:
        yield lambda description: stack.enter_context(stores_of(request.param, description))[0]  # type: ignore[return-value]


Make = Callable[[StoreDescription], ByName]


def test_a_number_takes_the_place_of_a_schedule_from_its_step_on(make: Make) -> None:
    schedule = {"schedule": "linear", "start": 1.0, "end": 5.0, "steps": 4}
    store = make(described(1, 2, hyper={"lr": schedule}))
    assert store.set_hyper({"lr": 10.0}, step=2).result(WAIT_S) == 2
    run(store, KEYS, range(4))
    assert [summed(store, key, 4) for key in (*KEYS, "t")] == [1.0 + 2.0 + 10.0 + 10.0] * 5


def test_one_key_or_table_is_changed_alone_and_keeps_its_own_number(make: Make) -> None:
    store = make(described(1, 2))
    store.set_hyper({"lr": 3.0}, step=1, key="b").result(WAIT_S)
    store.set_hyper({"lr": 5.0}, step=1, key="t").result(WAIT_S)
    run(store, KEYS, range(2))
    store.set_hyper({"lr": 7.0}, step=2).result(WAIT_S)
    run(store, KEYS, range(2, 3))
    assert [summed(store, key, 3) for key in (*KEYS, "t")] == [9.0, 7.0, 9.0, 9.0, 11.0]


def test_multipliers_stretch_changed_numbers_too(make: Make) -> None:
    keys = list(described(1, 2).keys)
    keys[1] = msgspec.structs.replace(keys[1], multipliers={"lr": 2.0})
    store = make(described(1, 2, keys=tuple(keys)))
    store.set_hyper({"lr": 3.0}, step=0).result(WAIT_S)
    run(store, KEYS, range(1))
    assert [summed(store, key, 1) for key in KEYS] == [3.0, 6.0, 3.0, 3.0]


def test_a_step_that_the_slot_has_begun_is_refused_and_without_one_it_is_the_next(make: Make) -> None:
    description = described(1, 2)
    store = KVStore(make(description), description, 0)
    for _ in range(2):
        store.pushpull(list(KEYS), [np.ones(9, np.float32)] * 4).result(WAIT_S)
    with pytest.raises(StoreRefusedError, match=r"slot 0: set_hyper: step 1 of key '\w+' has begun here; step 2 is"):
        store.set_hyper("lr", 3.0, step=1)
    assert store.set_hyper("lr", 3.0, key="t").result(WAIT_S) == 0
    store.end_step().result(WAIT_S)
    assert store.set_hyper("lr", 4.0, key="t").result(WAIT_S) == 2, "the slot has nothing for it in steps 0 and 1"
    store.push("a", np.ones(9, np.float32)).result(WAIT_S)
    assert store.set_hyper("lr", 7.0, step=2, key="b").result(WAIT_S) == 2
    change = store.set_hyper("lr", 5.0)
    assert [store.hyper("a", step=step)["lr"] for step in (0, 2, 3)] == [1.0, 1.0, 5.0], "at once"
    assert change.result(WAIT_S) == 3
    values = [store.pushpull(key, np.ones(9, np.float32)).result(WAIT_S)[0] for key in ("a", "b")]
    assert values == [-(3 * 1.0 + 5.0), -(2 * 1.0 + 7.0)], "what was refused has changed nothing"


def test_only_a_slot_that_contributes_to_all_keys_may_change_them() -> None:
    """Else its change and the others' pushes would come in any order."""
    keys = [*described(2, 1).keys]
    keys[1] = msgspec.structs.replace(keys[1], slots=(0,))
    description = described(2, 1, keys=tuple(keys))
    with stores_of("local", description) as both:
        first, second = [KVStore(store, description, slot) for slot, store in enumerate(both)]  # type: ignore[arg-type]
        with pytest.raises(StoreRefusedError, match=r"slot 1: set_hyper: only slots \[0\] contribute to key 'b'"):
            second.set_hyper("lr", 3.0)
        assert second.set_hyper("lr", 3.0, key="a").result(WAIT_S) == 0
        assert first.set_hyper("lr", 2.0).result(WAIT_S) == 0


@pytest.mark.parametrize(
    ("name", "value", "of", "told"),
    [
        ("speed", 1.0, {}, r"slot 0: set_hyper: rule 'sgd' has no 'speed'; it has .*lr"),
        ("lr", float("nan"), {}, "'lr': a finite number, not nan"),
        ("lr", "fast", {}, "'lr': a finite number, not 'fast'"),
        ("lr", 1.0, {"key": "z"}, "key 'z'.*no such key"),
        ("lr", 1.0, {"step": -1}, r"set_hyper: step: a number from 0 to 2\*\*62 - 1, not -1"),
        ("lr", 1.0, {"key": "mean"}, "set_hyper of key 'mean': the shards update it by no rule"),
        (
            "lr",
            -1e39,
            {"key": "a"},
            r"slot 0: set_hyper of key 'a': 'lr': -1e\+39 is infinite in float32, which key 'a' is",
        ),
        ("lr", 1e39, {"key": "t"}, "key 't': 'lr': 1e.39 is infinite in float32, which key 't' is of"),
        ("lr", 2e38, {}, r"'lr': 2e\+38, multiplied by 4 is infinite in float32, which key 'fast' is of"),
    ],
)
def test_what_cannot_be_meant_is_refused(name: str, value: Any, of: Any, told: str) -> None:
    mean = msgspec.structs.replace(key_of("mean", (3,), 1), update=Update.MEAN)
    fast = msgspec.structs.replace(key_of("fast", (3,), 1), multipliers={"lr": 4.0})
    with KVStore.local(described(1, 2, keys=(*described(1, 2).keys, mean, fast))) as store:
        with pytest.raises(StoreRefusedError, match=told):
            store.set_hyper(name, value, **of)
        with pytest.raises(StoreRefusedError, match=r"hyper of key 'a': step: a number from 0 to 2\*\*62 - 1, not -1"):
            store.hyper("a", step=-1)


@pytest.mark.parametrize("mode", [Mode.ASYNC, Mode.STALE])
def test_in_async_and_stale_mode_the_step_is_each_slots_own(mode: Mode) -> None:
    choose = random.Random(5)
    simulation = Simulation(described(2, 2, mode=mode))
    change = simulation.stores[1].set_hyper({"lr": 10.0}, step=2)
    simulation.finish(choose, change)
    training = Training(simulation, choose)
    for slot in (0, 0, 0, 1, 1, 1):  # Each waits for itself alone.
        step, store = training.steps[slot], simulation.stores[slot]
        training.steps[slot] += 1
        simulation.finish(choose, *[store.push(name, step, np.ones(9, np.float32)) for name in KEYS])
        simulation.finish(choose, store.push("t", step, np.ones((8, 3), np.float32), np.arange(8)))
    for name, value in training.values(3).items():
        assert rates_used(value, 2) == 12.0, name


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"names": ["lr", "lr"], "numbers": [1.0, 2.0]}, "Hyper.names"),
        ({"names": ["lr"], "numbers": [1.0, 2.0]}, "Hyper.names"),
        ({"names": ["speed"], "numbers": [1.0]}, "Hyper.numbers: rule 'sgd' has no 'speed'"),
        ({"names": ["lr"], "numbers": [float("inf")]}, "Hyper.numbers: 'lr': a finite number, not inf"),
        ({"names": ["lr"], "numbers": [1e39]}, "Hyper.numbers: 'lr': 1e+39 is infinite in float32, which key 'a'"),
        ({"key": [99]}, "Hyper.key: 99"),
        ({"key": [1]}, "Hyper.numbers: only slots [1] contribute to key 'b', and may change it"),
    ],
)
def test_a_change_that_contradicts_the_description_loses_its_connection(wrong: dict[str, Any], told: str) -> None:
    core, good = greeted()
    message = msgspec.structs.replace(good, **wrong)
    said = say(core, message)
    assert isinstance(said[0], Refused)
    assert told in said[0].reason
    assert not core.peers


def test_a_change_that_is_repeated_on_a_new_connection_undoes_none_behind_it() -> None:
    core, first = greeted()
    behind = msgspec.structs.replace(first, request=10, numbers=[3.0])
    for message, rate in ((first, 2.0), (behind, 3.0), (first, 3.0), (behind, 3.0)):
        assert say(core, message) == []
        core.flush(0.0)
        assert [decode_reply(parts)[0] for _, parts in core.links.outgoing] == [Done([message.request])]
        core.links.outgoing = []
        assert core.job.hyper.at(0, "") == {"lr": rate}


def greeted() -> tuple[ShardCore, Hyper]:
    """A shard that slot 0 has greeted, and a change."""
    keys = list(described(1, 2).keys)
    keys[1] = msgspec.structs.replace(keys[1], slots=(1,), multipliers={"lr": 0.0}, hyper={"lr": 1.0})
    description = described(2, 2, keys=tuple(keys))
    core = ShardCore(bytes(16), LinkSettings())
    core.open(JobShard(description, 0))
    assert isinstance(say(core, hello_of(description, 0))[0], Welcome)
    return core, Hyper(9, 0, [], ["lr"], [2.0])


def say(core: ShardCore, message: Message) -> list[Message]:
    """What the shard answers."""
    core.receive(b"one", [bytes(part) for part in encode(message)], 0.0)
    core.links.outgoing, outgoing = [], core.links.outgoing
    return [decode_reply(parts)[0] for _, parts in outgoing]


@pytest.mark.parametrize(("numbers", "every"), [({"weight_decay": 0.0}, 2), ({}, 1)])
def test_what_no_step_can_ask_for_is_forgotten(
    numbers: dict[str, float], every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rate that is set anew at every step takes no more memory than one that never is."""
    monkeypatch.setattr("weft_kvstore.shard.job_shard.FORGET_EVERY", every)
    choose = random.Random(1)
    simulation = Simulation(described(1, 2))
    training = Training(simulation, choose)
    for step in range(STEPS):
        simulation.finish(choose, simulation.stores[0].set_hyper({"lr": step + 1.0, **numbers}, step=step))
        training.push(0)
        simulation.settle(choose)
    assert [core.job.hyper.kept for core in simulation.shards] == [every, every]
    assert summed_now(training) == sum(range(1, STEPS + 1))


def test_a_replaced_slot_takes_no_changes_of_others_with_it() -> None:
    """Its own are taken back from a step on, also where the earliest changes, of a slot far ahead, have become one."""
    changes = HyperTimeline(described(2, 1))
    changes.set(1, 0, "", "lr", 7.0)
    changes.set(5, 1, "", "momentum", 0.5)
    changes.set(9, 0, "", "lr", 2.0)
    changes.set(9, 1, "", "momentum", 0.25)
    changes.set(9, 1, "a", "momentum", 0.125)
    changes.keep(3)
    changes.withdraw(1, {"": 3, "a": 10}.__getitem__)
    assert (changes.at(8, ""), changes.at(8, "a")) == ({"lr": 7.0, "momentum": 0.5}, {})
    assert (changes.at(9, ""), changes.at(9, "a")) == ({"lr": 2.0, "momentum": 0.5}, {"momentum": 0.125})


@pytest.mark.parametrize("rule", ["adam", "adamw", "lamb"])
@pytest.mark.parametrize(("name", "value"), [("beta1", 1.0), ("beta1", -1.0), ("beta1", 3.0), ("beta2", 2.0)])
def test_a_number_that_would_fail_every_update_is_refused(rule: str, name: str, value: float) -> None:
    """It ends no job: an update divides by 1 - beta1^t, and takes the root of 1 - beta2^t."""
    told = f"'{name}': {value:g} is not between -1 and 1, as rule '{rule}' needs it of 'w'"
    key = Key((2,), initializer=0.0, whole=rule == "lamb")
    with pytest.raises(DescriptionError, match=f"hyper: {told}"):
        describe({"w": key}, rule=rule, **{name: value})
    with KVStore.local(describe({"w": key}, rule=rule)) as store:
        with pytest.raises(StoreRefusedError, match=told):
            store.set_hyper(name, value)
        store.set_hyper(name, 0.5).result(WAIT_S)
        assert np.all(store.pushpull("w", [1, 1]).result(WAIT_S) < 0)


def test_a_number_may_be_as_large_as_the_type_of_those_that_it_is_for() -> None:
    small = msgspec.structs.replace(constant(key_of("small", (2,), 1), 0.0), dtype="float16", multipliers={"lr": 0.5})
    large = msgspec.structs.replace(constant(key_of("large", (2,), 1), 0.0), dtype="float64")
    own = msgspec.structs.replace(constant(table_of("own", (2, 1), 1), 0.0), hyper={"lr": 1.0})
    with KVStore.local(described(1, 2, keys=(small, large, own))) as store:
        assert store.set_hyper("lr", 100_000.0).result(WAIT_S) == 0, "half of it is finite in float16"
        assert store.set_hyper("lr", 1e300, key="large").result(WAIT_S) == 0
        with pytest.raises(StoreRefusedError, match=r"'lr': 140000, multiplied by 0\.5 is infinite in float16"):
            store.set_hyper("lr", 140_000.0)


@pytest.mark.parametrize("key", [[], [0], [4]])
def test_changes_that_wait_are_bounded_in_number_until_their_steps_come(
    key: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whatever order they come."""
    monkeypatch.setattr("weft_kvstore.shard.job_shard.MAX_CHANGES", 5)
    core, good = greeted()
    for request in range(1, 11):
        change = msgspec.structs.replace(good, request=request, step=20 - request, key=key)
        assert say(core, change) == []
    (refused,) = say(core, msgspec.structs.replace(good, request=11, step=5000, key=key))
    assert isinstance(refused, Failed)
    assert refused.reason == "10 changes wait for their steps already"
    assert core.peers, "its other calls go on"


def test_a_key_that_is_pushed_no_more_does_not_end_the_changes_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rate that is set at every step while one key is frozen: the earliest rates are forgotten, not refused."""
    monkeypatch.setattr("weft_kvstore.shard.job_shard.MAX_CHANGES", 8)
    choose = random.Random(1)
    simulation = Simulation(described(1, 2))
    store = simulation.stores[0]
    for step in range(40):
        change = store.set_hyper({"lr": step + 1.0}, step=step)
        pushed = [store.push(key, step, np.ones(9, np.float32)) for key in KEYS[1:]]
        simulation.finish(choose, change, *pushed)
    pulled = [store.pull(key, 40) for key in KEYS[1:]]
    simulation.finish(choose, *pulled)
    assert [rates_used(one.result(0), 1) for one in pulled] == [sum(range(1, 41))] * 3
    timelines = [core.job.hyper for core in simulation.shards]
    (earliest,) = {one.known_from("") for one in timelines}
    assert [one.kept <= 8 for one in timelines] == [True, True]
    thawed = store.push("a", 0, np.ones(9, np.float32))
    simulation.finish(choose, thawed, pulled := store.pull("a", 1))
    assert 30 < rates_used(pulled.result(0), 1) == earliest + 1.0, "the earliest rate that is known"


@pytest.mark.parametrize("mode", [Mode.ASYNC, Mode.STALE])
def test_nor_does_a_slot_that_pushes_nothing_in_async_and_stale_mode(
    mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft_kvstore.shard.job_shard.MAX_CHANGES", 8)
    choose = random.Random(1)
    simulation = Simulation(described(2, 2, mode=mode, staleness=99))
    store = simulation.stores[0]
    for step in range(40):
        change = store.set_hyper({"lr": step + 1.0}, step=step)
        pushed = [store.push(key, step, np.ones(9, np.float32)) for key in KEYS]
        simulation.finish(choose, change, *pushed)
    pulled = [store.pull(key, 40) for key in KEYS]
    simulation.finish(choose, *pulled)
    assert [rates_used(one.result(0), 1) for one in pulled] == [sum(range(1, 41))] * 4


def test_a_change_too_many_fails_and_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_kvstore.shard.job_shard.MAX_CHANGES", 2)
    choose = random.Random(1)
    simulation = Simulation(described(1, 2))
    changes = [simulation.stores[0].set_hyper({"lr": 2.0}, step=step) for step in (7, 8, 9)]
    simulation.finish(choose, *changes)
    assert [changes[0].result(0), changes[1].result(0)] == [7, 8]
    with pytest.raises(StoreRefusedError, match="2 changes wait for their steps already"):
        changes[2].result(0)
    simulation.settle(choose)
    assert not any(link.requests for link in simulation.clients[0].links)


def lines_of(call: Callable[[], object]) -> int:
    """How many lines of the timeline a call runs."""
    lines = 0

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        lines += event == "line" and frame.f_code.co_filename == hyper_module.__file__
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines


def test_a_change_and_a_question_take_as_long_however_many_changes_there_are() -> None:
    """Also a change of a step before many others, and of a lower slot."""

    def cost(changes: int) -> list[int]:
        timeline = HyperTimeline(described(1, 1))
        for step in range(1, changes + 1):
            timeline.set(step, 2, "", "lr", 0.5)
        half = changes // 2
        return [
            lines_of(lambda: timeline.set(half, 1, "", "lr", 0.25)),
            lines_of(lambda: timeline.set(half, 2, "", "lr", 0.125)),
            lines_of(lambda: timeline.set(changes, 2, "", "lr", 0.75)),
            lines_of(lambda: timeline.set(changes, 3, "", "lr", 0.5)),
            lines_of(lambda: timeline.at(half, "")),
        ]

    assert cost(1000) == cost(10)


def test_a_timeline_that_is_read_while_it_is_written_shows_one_state_or_the_next() -> None:
    """At every line of a change another thread may read it: what was written piece by piece was an IndexError there."""
    timeline, seen = HyperTimeline(described(1, 1)), []
    for step in range(3):
        timeline.set(step, 0, "", "lr", float(step))
    expected = [timeline.at(9, ""), {"lr": 9.0}]

    def at_each_line(frame: FrameType, *_: object) -> Any:
        if frame.f_code.co_filename == hyper_module.__file__:
            sys.settrace(None)
            seen.append(timeline.at(9, ""))
            sys.settrace(at_each_line)
        return at_each_line

    before = sys.gettrace()
    sys.settrace(at_each_line)
    try:
        timeline.set(5, 0, "", "lr", 9.0)
        timeline.forget(4)
    finally:
        sys.settrace(before)
    assert len(seen) > 8
    assert [one for one in expected for _ in range(seen.count(one))] == seen


def change(store: KVStore, key: str, step: int, lr: float) -> None:
    """As `set_hyper` notes it; the shards are not told."""
    store._hyper.set(step, 0, key, "lr", lr)
    store._hyper.keep(CHANGES_KEPT)


def test_changes_of_long_ago_are_forgotten_and_said_to_be() -> None:
    last = CHANGES_KEPT + 10
    with KVStore.local(describe({"w": (4,), "b": (4,)}, rule="sgd", lr=0.5)) as store:
        for step in range(1, last + 1):
            change(store, "", step, float(step))
            change(store, "b", step, -float(step))
            assert store._hyper.kept <= CHANGES_KEPT
        assert store._hyper.kept >= CHANGES_KEPT // 2
        first = store._hyper.known_from("w")
        found = [store.hyper("w", step=step)["lr"] for step in (first, first + 1, 1 << 40)]
        assert found == [first, first + 1, last]
        assert store.hyper("b", step=first)["lr"] == -first
        with pytest.raises(
            StoreRefusedError,
            match=f"hyper of key 'w', step {first - 1}: what was changed before step {first} is forgotten",
        ):
            store.hyper("w", step=first - 1)


def test_changes_of_one_key_that_are_forgotten_are_none_of_another() -> None:
    with KVStore.local(describe({"w": (4,), "b": (4,)}, rule="sgd", lr=0.5)) as store:
        for step in range(50, CHANGES_KEPT + 60):
            change(store, "b", step, float(step))
        assert store.hyper("w", step=9)["lr"] == 0.5
        with pytest.raises(StoreRefusedError, match="key 'b', step 9: what was changed before step"):
            store.hyper("b", step=9)


def summed_now(training: Training) -> float:
    return rates_used(training.values(STEPS)["a"], 1)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 12),
            st.integers(0, 2),
            st.sampled_from(["", "w"]),
            st.dictionaries(st.sampled_from("abc"), st.floats(0, 1)),
        ),
        unique_by=lambda one: one[:3],
    ),
    st.integers(0, 12),
    st.integers(0, 12),
)
def test_a_timeline_is_what_its_changes_say_in_order_of_step_and_slot(
    changes: list[tuple[int, int, str, dict[str, float]]], before: int, kept: int
) -> None:
    """In whatever order they come; changes that slot 1 withdraws are not forgotten yet."""
    timeline = HyperTimeline(described(3, 1))
    for step, slot, key, numbers in changes:
        for name, number in numbers.items():
            timeline.set(step, slot, key, name, number)
    for does in ("nothing", "forget", "withdraw"):
        if does == "forget":
            timeline.forget(before)
        elif does == "withdraw":
            timeline.withdraw(1, lambda _: max(before, kept))
            changes = [one for one in changes if one[1] != 1 or one[0] < max(before, kept)]
        for step in range(before, 14):
            expected: dict[str, dict[str, float]] = {}
            for first, _, key, numbers in sorted(changes, key=lambda one: one[:2]):
                if first <= step:
                    expected[key] = expected.get(key, {}) | numbers
            assert {key: timeline.at(step, key) for key in ("", "w")} == {"": {}, "w": {}} | expected
        every = [one for names in timeline._changes.values() for those in names.values() for one in those]
        assert timeline.kept == sum(one.slot >= 0 for one in every)


def test_a_slots_later_change_of_a_step_adds_to_its_earlier_one() -> None:
    timeline = HyperTimeline(described(2, 1))
    for name, number in (("lr", 1.0), ("momentum", 2.0), ("lr", 3.0)):
        timeline.set(4, 1, "", name, number)
    timeline.set(4, 0, "", "lr", 5.0)
    timeline.set(4, 0, "", "epsilon", 6.0)
    assert timeline.at(4, "") == {"lr": 3.0, "momentum": 2.0, "epsilon": 6.0}
    assert timeline.kept == 4
