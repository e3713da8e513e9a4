"""A process that takes a slot over does the step again that was under way: bits are those of a run without deaths."""

from __future__ import annotations

import random
from collections.abc import Generator
from concurrent.futures import Future
from typing import Any

import msgspec
import numpy as np
import pytest

from store_cluster import Array, ByName, key_of, store_of
from store_simulation import Simulation
from weft_graph.program import Update
from weft_kvstore.description.records import CommitDescription, StoreDescription

SLOTS, STEPS = 3, 4
SIZES = {"a": 12, "b": 30, "mean": 6}


def described(*, clipped: bool = False) -> StoreDescription:
    """Slices on both shards. The mean is fetched by nobody while it trains, as running statistics are."""
    keys = [key_of(name, (size,), SLOTS, priority=number) for number, (name, size) in enumerate(SIZES.items())]
    keys[-1] = msgspec.structs.replace(keys[-1], update=Update.MEAN)
    description = store_of(keys, slots=SLOTS, shards=2, slice_bytes=32, rule="adam", hyper={"lr": 0.1})
    return msgspec.structs.replace(description, commit=CommitDescription(clip_norm=0.5)) if clipped else description


def trained(store: ByName, slot: int, first: int) -> Generator[list[Future[Any]], None, None]:
    """A slot's steps from the first on. Gradients depend on all values, so that a version too many changes the bits."""
    for step in range(first, STEPS):
        pulls = [store.pull(name, step) for name in ("a", "b")]
        yield pulls
        a, b = (pull.result(0) for pull in pulls)
        seen = float(a.sum(dtype=np.float64) - b.sum(dtype=np.float64))
        pushes = []
        for name, size in SIZES.items():
            elements = np.arange(size, dtype=np.float32) + np.float32(slot + 1)
            pushes.append(store.push(name, step, np.sin(elements * np.float32(seen)).astype(np.float32)))
        yield pushes
        yield [store.barrier(step, [])]


class Training:
    """The slots of a store, each in a process of its own that may die."""

    def __init__(self, description: StoreDescription, seed: int, *, keeps_previous: bool = True) -> None:
        self.choose = random.Random(seed)
        self.simulation = Simulation(description, keeps_previous=keeps_previous)
        self.incarnations = [1] * SLOTS
        self.processes = [trained(self.simulation.stores[slot], slot, 0) for slot in range(SLOTS)]
        self.waits: list[list[Future[Any]]] = [next(process) for process in self.processes]

    def kill(self, slot: int) -> None:
        """The slot's process dies, and another one takes over."""
        self.incarnations[slot] += 1
        store = self.simulation.join(slot, self.incarnations[slot])
        self.processes[slot] = self._begun(store, slot)
        self.waits[slot] = next(self.processes[slot])

    def run(self, most: int | None = None) -> bool:
        """Until all slots have ended, or so many things have happened: whether all have ended."""
        happened = 0
        while any(self.waits):
            if happened == most:
                return False
            happened += 1
            if not self.simulation.step(self.choose):
                self.simulation.now += 0.1
                assert self.simulation.now < 60.0, "the store stands still"
            for slot, wait in enumerate(self.waits):
                if wait and all(future.done() for future in wait):
                    for future in wait:
                        future.result(0)
                    self.waits[slot] = next(self.processes[slot], [])
        return True

    def result(self) -> dict[str, list[bytes]]:
        """Of every key: its value and the rule's state."""
        store, found = self.simulation.stores[0], {}
        for name in SIZES:
            futures = [store.pull(name, STEPS), *([] if name == "mean" else [store.pull(name, STEPS, state=True)])]
            self.simulation.finish(self.choose, *futures)
            value, *state = (future.result(0) for future in futures)
            found[name] = [bytes(value), *(bytes(array) for arrays in state for array in arrays.values())]
        return found

    @staticmethod
    def _begun(store: ByName, slot: int) -> Generator[list[Future[Any]], None, None]:
        asked = store.pull(list(SIZES), 0, settled=True, with_versions=True)
        yield [asked]
        yield from trained(store, slot, int(asked.result(0).lowest.min()))


def killed(description: StoreDescription, seed: int, *, keeps_previous: bool = True) -> dict[str, list[bytes]]:
    """What a run comes to in which processes die, at times that follow from the seed; some while they take over."""
    training = Training(description, seed, keeps_previous=keeps_previous)
    choose = random.Random(-seed)
    for _ in range(choose.randrange(1, 5)):
        if training.run(choose.randrange(5, 250)):
            break
        for slot in choose.sample(range(SLOTS), choose.choice([1, 1, 2, SLOTS])):
            training.kill(slot)
    assert training.run()
    return training.result()


@pytest.mark.parametrize("clipped", [False, True], ids=["plain", "clipped"])
def test_a_slot_whose_process_dies_at_any_message_comes_to_the_same_bits(clipped: bool) -> None:
    description = described(clipped=clipped)
    undisturbed = Training(description, 0)
    assert undisturbed.run()
    expected = undisturbed.result()
    for seed in range(1, 80):
        assert killed(description, seed) == expected, seed


def test_without_the_values_before_the_last_step_a_slot_that_is_taken_over_goes_wrong() -> None:
    description = described()
    undisturbed = Training(description, 0)
    assert undisturbed.run()
    expected = undisturbed.result()
    assert any(killed(description, seed, keeps_previous=False) != expected for seed in range(1, 80))


def test_a_pull_of_the_version_before_is_answered_and_every_other_has_the_newest() -> None:
    description = store_of([key_of("w", (40,), 1)], slots=1, shards=1, slice_bytes=32)
    simulation, choose = Simulation(description, keeps_previous=True), random.Random(3)
    store, values = simulation.stores[0], []
    for step in range(3):
        pulled = store.pull("w", step)
        simulation.finish(choose, pulled)
        values.append(pulled.result(0).copy())
        simulation.finish(choose, store.push("w", step, np.ones(40, np.float32)))

    def pulled_at(version: int, **how: bool) -> Array:
        asked = store.pull("w", version, **how)
        simulation.finish(choose, asked)
        return asked.result(0)

    newest = pulled_at(3)
    assert not np.array_equal(newest, values[2])
    np.testing.assert_array_equal(pulled_at(2), values[2])
    np.testing.assert_array_equal(pulled_at(2, settled=True), newest)
    np.testing.assert_array_equal(pulled_at(1), newest)
