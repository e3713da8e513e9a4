"""Messages that are lost, come twice or come too early, on connections that do not break, change no bit of a result."""

from __future__ import annotations

import random
from concurrent.futures import Future
from typing import Any

import msgspec
import numpy as np
import pytest

from store_cluster import gradients_of, key_of, store_of, table_of
from store_simulation import Noise, Simulation
from weft_kvstore.description.records import (
    CommitDescription,
    CompressionDescription,
    Kind,
    StoreCompression,
    StoreDescription,
)
from weft_kvstore.settings import LinkSettings

STEPS, SLOTS, SHARDS = 4, 2, 2
TICK_S = 0.05
LONGEST_S = 600.0
"""Of simulated time, for a step."""
SETTINGS = LinkSettings(silence_s=30.0, ping_interval_s=0.2, request_timeout_s=LONGEST_S, credit_bytes=2048)


def finish(simulation: Simulation, choose: random.Random, futures: list[Future[Any]]) -> None:
    end = simulation.now + LONGEST_S
    while not all(future.done() for future in futures):
        assert simulation.now < end, "the store stands still"
        while simulation.step(choose):
            pass
        simulation.now += TICK_S
        for shard in simulation.shards:
            shard.tick(simulation.now)
    for future in futures:
        future.result(0)


def trained(description: StoreDescription, seed: int, noise: Noise | None) -> dict[str, bytes]:
    choose = random.Random(seed)
    simulation = Simulation(description, SETTINGS)
    if noise is not None:
        simulation.noise = noise
    for step in range(STEPS):
        futures: list[Future[Any]] = []
        for slot, store in simulation.stores.items():
            gradients = gradients_of(description, slot, step)
            for key in ("a", "b"):
                futures += [store.push(key, step, gradients[key]), store.pull(key, step + 1)]
            ids = np.arange(slot, 40, step + 2)
            futures.append(store.push("t", step, np.full((len(ids), 4), slot + step + 1, np.float32), ids))
            futures.append(store.pull("t", step + 1, ids))
            futures.append(store.barrier(step, []))
        finish(simulation, choose, futures)
    store, rows = simulation.stores[0], np.arange(40)
    values: dict[str, Future[Any]] = {key: store.pull(key, STEPS) for key in ("a", "b")}
    states: dict[str, Future[Any]] = {key: store.pull(key, STEPS, state=True) for key in ("a", "b")}
    values["t"], states["t"] = store.pull("t", STEPS, rows), store.pull("t", STEPS, rows, state=True)
    finish(simulation, choose, [*values.values(), *states.values()])
    found = {key: value.result(0).tobytes() for key, value in values.items()}
    return found | {f"{key}/{n}": a.tobytes() for key, state in states.items() for n, a in state.result(0).items()}


def described(kind: str) -> StoreDescription:
    keys = [key_of("a", (700,), SLOTS), key_of("b", (40,), SLOTS, priority=-1), table_of("t", (40, 4), SLOTS)]
    described = store_of(keys, slots=SLOTS, shards=SHARDS, rule="adam", slice_bytes=512)
    if kind == "clipped":
        return msgspec.structs.replace(described, commit=CommitDescription(clip_norm=1.0))
    if kind == "2bit":
        small = StoreCompression(gradients=CompressionDescription(Kind.TWO_BIT, threshold=0.5), least_bytes=0)
        return msgspec.structs.replace(described, compression=small)
    return described


@pytest.mark.parametrize("kind", ["plain", "clipped", "2bit"])
@pytest.mark.parametrize("seed", range(5))
def test_a_network_that_loses_repeats_and_swaps_messages_changes_no_bit(kind: str, seed: int) -> None:
    noise = Noise(random.Random(seed), lost=0.3, twice=0.1, swapped=0.1)
    assert trained(described(kind), seed, noise) == trained(described(kind), seed, None)
