"""Connections that break at either end, slots that fall silent and slots that are replaced, all in one run: each push
counts once, every call ends before its deadline, and nothing is left of what has ended."""

from __future__ import annotations

import random
from concurrent.futures import Future
from typing import Any

import msgspec
import numpy as np
import pytest

from store_cluster import constant, key_of, store_of, table_of
from store_simulation import Noise, Simulation
from weft_kvstore.description.records import CommitDescription, StoreDescription
from weft_kvstore.errors import StoreLostError, StorePassedError, StoreRefusedError
from weft_kvstore.settings import LinkSettings

SHAPES = {"a": (300,), "b": (40,), "t": (40, 4)}
STEPS = 4
SILENCE_S = 5.0
MOST_ROUNDS = 4000
"""Of a step: some 800 s. A call that nobody answers ends after 300, with an error that it may not have."""


def described(slots: int, shards: int, *, commits: bool) -> StoreDescription:
    keys = [constant(key_of(name, SHAPES[name], slots), 0.0) for name in "ab"]
    keys.append(constant(table_of("t", SHAPES["t"], slots), 0.0))
    description = store_of(keys, slots=slots, shards=shards, hyper={"lr": 1.0}, slice_bytes=256)
    commit = CommitDescription(clip_norm=1e9) if commits else None  # Far above: it changes no bit.
    return msgspec.structs.replace(description, commit=commit)


def lr_of(step: int) -> float:
    return float(2 ** (step % 3))


def gradient(slot: int, step: int, name: str) -> np.ndarray:
    return np.full(SHAPES[name], slot + 1 + step, np.float32)


class Storm:
    """A run in which each slot changes the rate, pushes every key and ends the step, and repeats what fails."""

    def __init__(self, seed: int, *, commits: bool) -> None:
        choose = self.choose = random.Random(seed)
        self.slots, shards = choose.choice([1, 2, 3]), choose.choice([1, 2])
        settings = LinkSettings(
            silence_s=SILENCE_S,
            ping_interval_s=0.5,
            request_timeout_s=300.0,
            credit_bytes=choose.choice([300, 2048, 1 << 20]),
            frame_bytes=choose.choice([256, 1024]),
        )
        self.simulation = Simulation(described(self.slots, shards, commits=commits), settings)
        if choose.random() < 0.5:
            self.simulation.noise = Noise(choose, lost=choose.choice([0, 0.02]), twice=0.02, swapped=0.02)
        self.incarnations = dict.fromkeys(range(self.slots), 1)
        self.silent_until: dict[int, float] = {}
        self.pulls: list[Future[Any]] = []
        self.running: dict[tuple[int, str], Future[Any]] = {}
        self.ended: set[tuple[int, str]] = set()

    def weather(self, count: int) -> None:
        """Breaks connections, silences slots, and lets some messages arrive and some time pass."""
        simulation, choose = self.simulation, self.choose
        for _ in range(count):
            drawn = choose.random()
            if drawn < 0.03:
                simulation.cut(choose.randrange(self.slots), choose.randrange(len(simulation.shards)))
            elif drawn < 0.05:
                shard = choose.choice(simulation.shards)
                if shard.peers:
                    shard.links.disconnect(choose.choice(list(shard.peers)))
            elif drawn < 0.055 and self.slots > 1:
                slot = choose.randrange(self.slots)
                simulation.silent.add(slot)
                self.silent_until[slot] = simulation.now + choose.choice([1, 6, 8])
            elif drawn < 0.3:
                simulation.now += choose.choice([0.05, 0.3])
            for slot, until in list(self.silent_until.items()):
                if simulation.now > until:
                    self.speak(slot)
            for _ in range(choose.randrange(8)):
                simulation.step(choose)
            self.tick()

    def speak(self, slot: int) -> None:
        self.simulation.silent.discard(slot)
        self.silent_until.pop(slot, None)

    def tick(self) -> None:
        for shard in self.simulation.shards:
            shard.tick(self.simulation.now)

    def calm(self, seconds: float) -> None:
        """Lets everything arrive for so long."""
        end = self.simulation.now + seconds
        while self.simulation.now < end:
            while self.simulation.step(self.choose):
                pass
            self.simulation.now += 0.1
            self.tick()

    def replace(self, slot: int) -> None:
        """A new process fills the slot, and makes the step's calls again."""
        self.incarnations[slot] += 1
        self.simulation.join(slot, self.incarnations[slot])
        self.speak(slot)
        self.ended = {call for call in self.ended if call[0] != slot}
        self.running = {call: future for call, future in self.running.items() if call[0] != slot}
        self.pulls.clear()  # Some are of the process that is gone.

    def begin(self, slot: int, name: str, step: int) -> Future[Any]:
        store = self.simulation.stores[slot]
        if name == "lr":
            return store.set_hyper({"lr": lr_of(step)}, step=step)
        if name == "end":
            return store.barrier(step, [])
        if name == "t":
            return store.push("t", step, gradient(slot, step, "t"), np.arange(40))
        return store.push(name, step, gradient(slot, step, name))

    def pull(self, slot: int, name: str, version: int) -> Future[Any]:
        store = self.simulation.stores[slot]
        return store.pull("t", version, np.arange(40)) if name == "t" else store.pull(name, version)

    def train(self, step: int) -> None:
        """One step of every slot."""
        choose = self.choose
        self.ended, self.running = set(), {}
        calls = [(slot, name) for slot in range(self.slots) for name in ("lr", "a", "b", "t", "end")]
        for _ in range(MOST_ROUNDS):
            for slot, name in choose.sample(calls, len(calls)):
                needs = {"lr": (), "end": ("a", "b", "t")}.get(name, ("lr",))
                call = slot, name
                if call in self.ended or call in self.running or any((slot, one) not in self.ended for one in needs):
                    continue
                self.running[call] = self.begin(slot, name, step)
                if choose.random() < 0.5:
                    self.pulls.append(self.pull(slot, choose.choice("abt"), choose.choice([step, step + 1])))
                self.weather(choose.randrange(4))
            if choose.random() < 0.02:
                self.replace(choose.randrange(self.slots))
            self.weather(5)
            for call, future in list(self.running.items()):
                if future.done():
                    del self.running[call]
                    if may_fail(future):
                        self.ended.add(call)
            if len(self.ended) == len(calls):
                return
        raise AssertionError(f"step {step} stands still: {self.running.keys()}")


def may_fail(future: Future[Any]) -> bool:
    """Whether it has a result. It may have been lost, or refused, but not have waited for its deadline."""
    error = future.exception(0)
    assert error is None or isinstance(error, StoreLostError | StoreRefusedError | StorePassedError), repr(error)
    return error is None


def leftovers(simulation: Simulation) -> list[Any]:
    """What clients and shards keep for calls; the rate's changes, which are kept until they are answered, too."""
    found: list[Any] = []
    for shard in simulation.shards:
        assert shard.counts["malformed_messages"] == 0
        assert shard.job is not None
        for peer in shard.links.clients.values():
            found += [peer.pulls, peer.failed, peer.unrepeated, peer.measures, peer.done, peer.outbox.waiting]
            found += [peer.open_entries, peer.ids_bytes, peer.outbox.queued_slices, peer.outbox.in_flight_bytes]
        found += [bucket.pulled_versions for bucket in shard.job.buckets.values()]
        found += [table.pulled_versions for table in shard.job.tables.values()]
    for client in simulation.clients.values():
        found += [client.open, client._blocked, client._setting]
        for link in client.links:
            found += [link.requests, link.outbox.queued_slices, link.outbox.in_flight_bytes]
    return [one for one in found if one]


@pytest.mark.parametrize("commits", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_each_push_counts_once_and_nothing_is_left_whatever_breaks(seed: int, *, commits: bool) -> None:
    storm = Storm(seed, commits=commits)
    for step in range(STEPS):
        storm.train(step)
    simulation = storm.simulation
    simulation.noise = Noise(random.Random(0))
    for slot in range(storm.slots):
        storm.speak(slot)
    storm.calm(2 * SILENCE_S)
    for pulled in storm.pulls:
        may_fail(pulled)
    value = -sum(lr_of(step) * (slot + 1 + step) for step in range(STEPS) for slot in range(storm.slots))
    last = [storm.pull(slot, name, STEPS) for slot in range(storm.slots) for name in SHAPES]
    storm.calm(SILENCE_S)
    assert all(np.all(pulled.result(0) == value) for pulled in last)
    assert leftovers(simulation) == []
