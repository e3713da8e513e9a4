"""Hyper-parameters that change while a job runs: from a step on, on every shard or on none."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from types import FrameType
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_cluster import WAIT_S, constant, key_of, store_of, stores_of, table_of
from store_raw import hello_of
from store_simulation import Simulation
from weft_graph.program import Update
from weft_kvstore import hyper as hyper_module
from weft_kvstore.client.calls import StoreCalls
from weft_kvstore.description.form import describe
from weft_kvstore.description.records import Mode, StoreDescription
from weft_kvstore.errors import StoreRefusedError
from weft_kvstore.hyper import MOST_AHEAD, HyperTimeline
from weft_kvstore.library.key_registry import CHANGES_KEPT, KeyRegistry
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.core import ShardCore
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.live_hyper import LiveHyper
from weft_kvstore.wire.codec import decode_reply, encode
from weft_kvstore.wire.messages import (
    Hyper,
    HyperAnswer,
    HyperDecide,
    HyperDecided,
    HyperSettle,
    Message,
    Refused,
    Welcome,
)

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
        pushed.append(store.push_rows("t", step, np.arange(8), np.ones((8, 3), np.float32)))
        self.pushed[slot].append(pushed)

    def values(self, version: int) -> dict[str, np.ndarray]:
        store = self.simulation.stores[0]
        pulls = {name: store.pull(name, version, settled=True) for name in KEYS}
        pulls["t"] = store.pull_rows("t", np.arange(8), version, settled=True)
        self.simulation.finish(self.choose, *pulls.values())
        return {name: pull.result(0) for name, pull in pulls.items()}


def rates_used(value: np.ndarray, slots: int) -> float:
    assert np.all(value == value.flat[0]), "slices of one key have used different rates"
    return float(-value.flat[0] / slots)


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> dict[LiveHyper, list[tuple[int, float]]]:
    """What each shard has changed, in order: the step and the rate."""
    found: dict[LiveHyper, list[tuple[int, float]]] = {}
    change = LiveHyper.change

    def recorded(live: LiveHyper, place: int | None, step: int, numbers: Mapping[str, float]) -> None:
        found.setdefault(live, []).append((step, numbers["lr"]))
        change(live, place, step, numbers)

    monkeypatch.setattr(LiveHyper, "change", recorded)
    return found


def live_of(core: ShardCore) -> LiveHyper:
    job = core.job
    return job.shard.live


def pass_time(simulation: Simulation, seconds: float) -> None:
    simulation.now += seconds
    for core in simulation.shards:
        core.tick(simulation.now)


@pytest.mark.parametrize("seed", range(30))
def test_all_shards_use_a_changed_rate_from_one_step_on_or_none_does(
    seed: int, record: dict[LiveHyper, list[tuple[int, float]]]
) -> None:
    """Slots train, change the rate at steps of their own choice and lose connections. In the end every slice of every
    key on every shard has used the same rates, and those are what the changes say that did not fail."""
    choose = random.Random(seed)
    slots, shards = choose.choice([(1, 1), (2, 3), (3, 2)])
    simulation = Simulation(described(slots, shards), LinkSettings(silence_s=1000.0, request_timeout_s=2000.0))
    for core in simulation.shards:
        core.settings = LinkSettings(silence_s=3.0)
    training = Training(simulation, choose)
    changes: dict[float, Future[int]] = {}
    while min(training.steps) < STEPS:
        slot = choose.randrange(slots)
        training.push(slot)
        if choose.random() < 0.4:
            lr = 1.0 + len(changes) / 8
            step = choose.choice([None, choose.randrange(STEPS)])
            changes[lr] = simulation.stores[slot].set_hyper({"lr": lr}, step=step)
        for _ in range(choose.randrange(40)):
            simulation.step(choose)
        if choose.random() < 0.2:
            simulation.cut(choose.randrange(slots), choose.randrange(shards))
        if choose.random() < 0.3:
            pass_time(simulation, 0.5)
    end(simulation, choose, list(changes.values()))
    made = record.get(live_of(simulation.shards[0]), [])
    assert all(record.get(live_of(core), []) == made for core in simulation.shards)
    assert {(future.result(0), lr) for lr, future in changes.items() if not future.exception(0)} <= set(made)
    refused = {lr for lr, future in changes.items() if isinstance(future.exception(0), StoreRefusedError)}
    assert not refused & {lr for _, lr in made}
    expected = [1.0] * STEPS
    for step, lr in sorted(made, key=lambda one: one[0]):
        expected[step:] = [lr] * len(expected[step:])
    for name, value in training.values(STEPS).items():
        assert rates_used(value, slots) == sum(expected), name


def end(simulation: Simulation, choose: random.Random, futures: list[Future[Any]]) -> None:
    """Until the changes have ended, and no shard holds one back of which it has not heard what became."""
    for _ in range(40):
        simulation.settle(choose)
        if all(future.done() for future in futures) and not any(live_of(core).pending for core in simulation.shards):
            return
        pass_time(simulation, 0.5)
    raise AssertionError("changes do not end")


@pytest.mark.parametrize("messages", range(0, 40, 2))
def test_a_proposer_that_dies_at_any_message_leaves_no_shard_in_doubt(
    messages: int, record: dict[LiveHyper, list[tuple[int, float]]]
) -> None:
    """Slot 1 changes the rate from step 1 on and is gone after so many messages; slot 0 goes on alone, for slot 1 has
    no key. The shards agree, whether it holds or not, and hold nothing back."""
    choose = random.Random(messages)
    keys = [msgspec.structs.replace(key, slots=(0,)) for key in described(2, 3).keys]
    simulation = Simulation(described(2, 3, keys=tuple(keys)), LinkSettings(silence_s=3.0))
    simulation.settle(choose)
    training = Training(simulation, choose)
    training.steps[1] = STEPS
    training.pushed[1] = [[]] * STEPS
    simulation.stores[1].set_hyper({"lr": 0.5}, step=1)
    before = len(simulation.delivered)
    while len(simulation.delivered) < before + messages and simulation.step(choose):
        pass
    simulation.silent.add(1)
    for _ in range(STEPS):
        training.push(0)
        for _ in range(200):
            simulation.step(choose)
    for _ in range(12):
        pass_time(simulation, 0.5)
        for _ in range(100):
            simulation.step(choose)
    made = record.get(live_of(simulation.shards[0]), [])
    assert made in ([], [(1, 0.5)])
    assert all(record.get(live_of(core), []) == made for core in simulation.shards)
    used = 1.0 + (STEPS - 1) * (0.5 if made else 1.0)
    for name, value in training.values(STEPS).items():
        assert rates_used(value, 1) == used, name
    again = simulation.stores[0].set_hyper({"lr": 2.0})
    for _ in range(100):
        simulation.step(choose)
    assert again.result(0) == STEPS


def test_of_several_who_change_at_once_one_does_and_the_others_are_told_to_try_again() -> None:
    for seed in range(20):
        choose = random.Random(seed)
        simulation = Simulation(described(3, 3))
        changes = [store.set_hyper({"lr": 0.5}, step=3) for store in simulation.stores.values()]
        end(simulation, choose, changes)
        refused = [change.exception(0) for change in changes if change.exception(0) is not None]
        assert len(refused) < 3
        for error in refused:
            assert isinstance(error, StoreRefusedError)
            assert "is changing hyper-parameters at this moment; try again" in str(error)


def run(store: StoreCalls, keys: Sequence[str], steps: range) -> None:
    for step in steps:
        for key in keys:
            store.push(key, step, np.ones(9, np.float32)).result(WAIT_S)
        store.push_rows("t", step, np.arange(8), np.ones((8, 3), np.float32)).result(WAIT_S)


def summed(store: StoreCalls, key: str, version: int) -> float:
    if key == "t":
        return rates_used(store.pull_rows("t", np.arange(8), version).result(WAIT_S), 1)
    return rates_used(store.pull(key, version).result(WAIT_S), 1)


@pytest.fixture(params=["network", "local"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[[StoreDescription], StoreCalls]]:
    with ExitStack() as stack:
        yield lambda description: stack.enter_context(stores_of(request.param, description))[0]  # type: ignore[return-value]


Make = Callable[[StoreDescription], StoreCalls]


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


def test_a_step_that_has_begun_is_refused_with_the_first_that_is_possible(make: Make) -> None:
    store = make(described(1, 2))
    run(store, KEYS, range(2))
    with pytest.raises(StoreRefusedError, match=r"slot 0: change of lr to 3 .*step 1.*step 2 is possible"):
        store.set_hyper({"lr": 3.0}, step=1).result(WAIT_S)
    store.push("a", 2, np.ones(9, np.float32)).result(WAIT_S)
    with pytest.raises(StoreRefusedError, match="step 2 of key 'a' has begun; step 3 is possible"):
        store.set_hyper({"lr": 3.0}, step=2).result(WAIT_S)
    assert store.set_hyper({"lr": 3.0}, step=2, key="b").result(WAIT_S) == 2
    assert store.set_hyper({"lr": 3.0}).result(WAIT_S) == 3
    assert summed(store, "a", 3) == 3.0, "what was refused has changed nothing"


@pytest.mark.parametrize(
    ("changes", "of", "told"),
    [
        ({"speed": 1.0}, {}, r"slot 0: set_hyper: rule 'sgd' has no 'speed'; it has .*lr"),
        ({"lr": float("nan")}, {}, "'lr': a finite number, not nan"),
        ({"lr": "fast"}, {}, "'lr': a finite number, not 'fast'"),
        ({}, {}, "0 numbers"),
        ({"lr": 1.0}, {"key": "z"}, "key 'z'.*no such key"),
        ({"lr": 1.0}, {"step": -1}, "step or version -1"),
        ({"lr": 1.0}, {"key": "mean"}, "set_hyper of key 'mean': the shards update it by no rule"),
        (
            {"lr": -1e39},
            {"key": "a"},
            r"slot 0: set_hyper of key 'a': 'lr': -1e\+39 is infinite in float32, which key 'a' is",
        ),
        ({"lr": 1e39}, {"key": "t"}, "key 't': 'lr': 1e.39 is infinite in float32, which key 't' is of"),
        ({"lr": 2e38}, {}, r"'lr': 2e\+38, multiplied by 4 is infinite in float32, which key 'fast' is of"),
        ({"lr": 1.0}, {"step": MOST_AHEAD + 1}, f"step {MOST_AHEAD + 1} is more than .* ahead: step 0 has not begun"),
    ],
)
def test_what_cannot_be_meant_is_refused(make: Make, changes: Any, of: Any, told: str) -> None:
    mean = msgspec.structs.replace(key_of("mean", (3,), 1), update=Update.MEAN)
    fast = msgspec.structs.replace(key_of("fast", (3,), 1), multipliers={"lr": 4.0})
    store = make(described(1, 2, keys=(*described(1, 2).keys, mean, fast)))
    with pytest.raises(StoreRefusedError, match=told):
        store.set_hyper(changes, **of).result(WAIT_S)


@pytest.mark.parametrize("mode", [Mode.ASYNC, Mode.STALE])
def test_where_slots_go_on_by_themselves_the_step_is_each_slots_own(mode: Mode) -> None:
    choose = random.Random(5)
    simulation = Simulation(described(2, 2, mode=mode))
    change = simulation.stores[1].set_hyper({"lr": 10.0}, step=2)
    end(simulation, choose, [change])
    training = Training(simulation, choose)
    for slot in (0, 0, 0, 1, 1, 1):  # Each waits for itself alone.
        step, store = training.steps[slot], simulation.stores[slot]
        training.steps[slot] += 1
        simulation.finish(choose, *[store.push(name, step, np.ones(9, np.float32)) for name in KEYS])
        simulation.finish(choose, store.push_rows("t", step, np.arange(8), np.ones((8, 3), np.float32)))
    for name, value in training.values(3).items():
        assert rates_used(value, 2) == 12.0, name


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"names": ["lr", "lr"], "numbers": [1.0, 2.0]}, "Hyper.names"),
        ({"names": ["lr"], "numbers": [1.0, 2.0]}, "Hyper.names"),
        ({"names": ["speed"], "numbers": [1.0]}, "Hyper.names: the rule has no 'speed'"),
        ({"names": ["lr"], "numbers": [float("inf")]}, "Hyper.numbers: 'lr' is inf"),
        ({"names": ["lr"], "numbers": [1e39]}, "Hyper.numbers: 'lr': 1e+39 is infinite in float32, which key 'a'"),
        ({"key": [99]}, "Hyper.key: 99"),
    ],
)
def test_a_proposal_that_contradicts_the_description_loses_its_connection(wrong: dict[str, Any], told: str) -> None:
    core, good = greeted()
    message = msgspec.structs.replace(good, **wrong)
    said = say(core, message)
    assert isinstance(said[0], Refused)
    assert told in said[0].reason
    assert not core.peers


def test_shard_0_hears_of_no_decision_and_no_other_makes_one() -> None:
    core, good = greeted()
    assert isinstance(say(core, HyperSettle(1, good.proposal, 1))[0], Refused)
    core, good = greeted(shard=1)
    assert isinstance(say(core, HyperDecide(1, good.proposal, 1))[0], Refused)
    core, good = greeted(shard=1)
    assert say(core, good) == [HyperAnswer(9, good.proposal, 1, 0, "")]
    assert isinstance(say(core, HyperSettle(1, good.proposal, 5))[0], Refused), "the versions between are missing"


def test_what_shard_0_was_asked_before_it_decided_is_given_up() -> None:
    core, good = greeted()
    assert say(core, good) == [HyperAnswer(9, good.proposal, 1, 0, "")]
    assert say(core, good) == [HyperAnswer(9, good.proposal, 1, 0, "")]
    assert say(core, HyperDecide(0, good.proposal, 0)) == [HyperDecided(0, good.proposal, 0)]
    assert say(core, HyperDecide(9, good.proposal, 1)) == [HyperDecided(9, good.proposal, 0)]
    (refused,) = say(core, good)
    assert isinstance(refused, HyperAnswer)
    assert (refused.held, refused.reason) == (0, "it took too long and was given up; try again")


def greeted(shard: int = 0) -> tuple[ShardCore, Hyper]:
    """A shard that slot 0 has greeted, and a proposal that it would hold."""
    description = described(1, 2)
    core = ShardCore(bytes(16), LinkSettings())
    core.open(JobShard(description, shard))
    assert isinstance(say(core, hello_of(description, 0))[0], Welcome)
    return core, Hyper(9, bytes(range(16)), 0, [], ["lr"], [2.0])


def say(core: ShardCore, message: Message) -> list[Message]:
    """What the shard answers."""
    core.receive(b"one", [bytes(part) for part in encode(message)], 0.0)
    core.links.outgoing, outgoing = [], core.links.outgoing
    return [decode_reply(parts)[0] for _, parts in outgoing]


def test_what_no_step_can_ask_for_is_forgotten() -> None:
    """A rate that is set anew at every step takes no more memory than one that never is."""
    choose = random.Random(1)
    simulation = Simulation(described(1, 2))
    training = Training(simulation, choose)
    for step in range(STEPS):
        end(simulation, choose, [simulation.stores[0].set_hyper({"lr": step + 1.0}, step=step)])
        training.push(0)
        simulation.settle(choose)
    assert [len(live_of(core)._job) for core in simulation.shards] == [1, 1]
    assert summed_now(training) == sum(range(1, STEPS + 1))


def test_a_number_may_be_as_large_as_the_type_of_those_that_it_is_for(make: Make) -> None:
    small = msgspec.structs.replace(constant(key_of("small", (2,), 1), 0.0), dtype="float16", multipliers={"lr": 0.5})
    large = msgspec.structs.replace(constant(key_of("large", (2,), 1), 0.0), dtype="float64")
    own = msgspec.structs.replace(constant(table_of("own", (2, 1), 1), 0.0), hyper={"lr": 1.0})
    store = make(described(1, 2, keys=(small, large, own)))
    assert store.set_hyper({"lr": 100_000.0}).result(WAIT_S) == 0, "half of it is finite in float16"
    assert store.set_hyper({"lr": 1e300}, key="large").result(WAIT_S) == 0
    with pytest.raises(StoreRefusedError, match=r"'lr': 140000, multiplied by 0\.5 is infinite in float16"):
        store.set_hyper({"lr": 140_000.0}).result(WAIT_S)


@pytest.mark.parametrize("key", [None, "a", "t"])
def test_changes_that_wait_are_bounded_in_number_until_their_steps_come(
    make: Make, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whatever order they come."""
    monkeypatch.setattr("weft_kvstore.shard.live_hyper.MOST_WAITING", 10)
    store = make(described(1, 2))
    for step in range(10, 0, -1):
        store.set_hyper({"lr": 1.0}, step=step, key=key).result(WAIT_S)
    with pytest.raises(StoreRefusedError, match="10 changes wait for their steps already"):
        store.set_hyper({"lr": 1.0}, step=5000, key=key).result(WAIT_S)
    run(store, KEYS, range(2))
    for name in KEYS:
        store.pull(name, 2).result(WAIT_S)
    store.pull_rows("t", np.arange(8), 2).result(WAIT_S)
    assert store.set_hyper({"lr": 1.0}, step=5000, key=key).result(WAIT_S) == 5000


def test_a_timeline_that_is_read_while_it_is_written_shows_one_state_or_the_next() -> None:
    """At every line of a change another thread may read it: what was written piece by piece was an IndexError there."""
    timeline, seen = HyperTimeline(), []
    for step in range(3):
        timeline.set(step, {"lr": float(step)})
    expected = [timeline.at(9), {"lr": 9.0}]

    def at_each_line(frame: FrameType, *_: object) -> Any:
        if frame.f_code.co_filename == hyper_module.__file__:
            sys.settrace(None)
            seen.append(timeline.at(9))
            sys.settrace(at_each_line)
        return at_each_line

    before = sys.gettrace()
    sys.settrace(at_each_line)
    try:
        timeline.set(5, {"lr": 9.0})
        timeline.forget(4)
    finally:
        sys.settrace(before)
    assert len(seen) > 8
    assert [one for one in expected for _ in range(seen.count(one))] == seen


def test_changes_of_long_ago_are_forgotten_and_said_to_be() -> None:
    registry = KeyRegistry(describe({"w": (4,), "b": (4,)}, rule="sgd", lr=0.5), 0)
    for step in range(1, CHANGES_KEPT + 11):
        registry.changed(None, step, {"lr": float(step)})
        registry.changed("b", step, {"lr": -float(step)})
    assert [registry.hyper("w", step)["lr"] for step in (11, 12, 1 << 40)] == [11.0, 12.0, CHANGES_KEPT + 10]
    assert registry.hyper("b", 11)["lr"] == -11.0
    with pytest.raises(
        StoreRefusedError, match="hyper of key 'w', step 10: what was changed before step 11 is forgotten"
    ):
        registry.hyper("w", 10)
    assert len(registry._job) == CHANGES_KEPT


def summed_now(training: Training) -> float:
    return rates_used(training.values(STEPS)["a"], 1)


@given(
    st.lists(st.tuples(st.integers(0, 12), st.dictionaries(st.sampled_from("abc"), st.floats(0, 1), max_size=2))),
    st.integers(0, 12),
)
def test_a_timeline_is_what_its_changes_say_one_by_one(
    changes: list[tuple[int, dict[str, float]]], before: int
) -> None:
    timeline = HyperTimeline()
    for step, numbers in changes:
        timeline.set(step, numbers)
    for forgets in (False, True):
        if forgets:
            timeline.forget(before)
        for step in range(before, 14):
            expected: dict[str, float] = {}
            for _, numbers in sorted((one for one in changes if one[0] <= step), key=lambda one: one[0]):
                expected |= numbers
            assert timeline.at(step) == expected
