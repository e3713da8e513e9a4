"""Hyper-parameters that change while a job runs: from a step on, on every shard or on none."""

from __future__ import annotations

import random
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import msgspec
import numpy as np
import pytest

from store_cluster import WAIT_S, constant, key_of, store_of, stores_of, table_of
from store_simulation import Simulation
from weft_kvstore.description import Mode, StoreDescription
from weft_kvstore.hyper import KeyHyper
from weft_kvstore.hyper_timeline import HyperTimeline
from weft_kvstore.live_hyper import LiveHyper
from weft_kvstore.messages import HyperDecide, HyperSettle
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard_mind import ShardMind
from weft_kvstore.store import BulkStore, StoreError, StoreRefusedError

KEYS = ("a", "b", "c")

STEPS = 6


def described(slots: int, shards: int, *, mode: Mode = Mode.SYNC, **changes: Any) -> StoreDescription:
    """SGD from zero with gradients of one: a value is minus the sum of its rates, times the slots."""
    keys = [constant(key_of(name, (9,), slots), 0.0) for name in KEYS]
    keys.append(constant(table_of("t", (8, 3), slots), 0.0))
    description = store_of(keys, slots=slots, shards=shards, rule="sgd", hyper={"rate": 1.0}, slice_bytes=8, mode=mode)
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
        found.setdefault(live, []).append((step, numbers["rate"]))
        change(live, place, step, numbers)

    monkeypatch.setattr(LiveHyper, "change", recorded)
    return found


def live_of(mind: ShardMind) -> LiveHyper:
    (job,) = mind.jobs.values()
    return job.shard.live


def pass_time(simulation: Simulation, seconds: float) -> None:
    simulation.now += seconds
    for mind in simulation.shards:
        mind.tick(simulation.now)


@pytest.mark.parametrize("seed", range(60))
def test_all_shards_use_a_changed_rate_from_one_step_on_or_none_does(
    seed: int, record: dict[LiveHyper, list[tuple[int, float]]]
) -> None:
    """Slots train, change the rate at steps of their own choice and lose connections. In the end every slice of every
    key on every shard has used the same rates, and those are what the changes say that did not fail."""
    choose = random.Random(seed)
    slots, shards = choose.choice([(1, 1), (2, 3), (3, 2)])
    simulation = Simulation(described(slots, shards), LinkSettings(silence_s=1000.0, request_timeout_s=2000.0))
    for mind in simulation.shards:
        mind.settings = LinkSettings(silence_s=3.0)
    training = Training(simulation, choose)
    changes: dict[float, Future[int]] = {}
    while min(training.steps) < STEPS:
        slot = choose.randrange(slots)
        training.push(slot)
        if choose.random() < 0.4:
            rate = 1.0 + len(changes) / 8
            step = choose.choice([None, choose.randrange(STEPS)])
            changes[rate] = simulation.stores[slot].set_hyper({"rate": rate}, step=step)
        for _ in range(choose.randrange(40)):
            simulation.step(choose)
        if choose.random() < 0.2:
            simulation.cut(choose.randrange(slots), choose.randrange(shards))
        if choose.random() < 0.3:
            pass_time(simulation, 0.5)
    end(simulation, choose, list(changes.values()))
    made = record.get(live_of(simulation.shards[0]), [])
    assert all(record.get(live_of(mind), []) == made for mind in simulation.shards)
    assert {(future.result(0), rate) for rate, future in changes.items() if not future.exception(0)} <= set(made)
    refused = {rate for rate, future in changes.items() if isinstance(future.exception(0), StoreRefusedError)}
    assert not refused & {rate for _, rate in made}
    expected = [1.0] * STEPS
    for step, rate in sorted(made, key=lambda one: one[0]):
        expected[step:] = [rate] * len(expected[step:])
    for name, value in training.values(STEPS).items():
        assert rates_used(value, slots) == sum(expected), name


def end(simulation: Simulation, choose: random.Random, futures: list[Future[Any]]) -> None:
    for _ in range(40):
        simulation.settle(choose)
        if all(future.done() for future in futures):
            return
        pass_time(simulation, 0.5)
    raise AssertionError("changes do not end")
