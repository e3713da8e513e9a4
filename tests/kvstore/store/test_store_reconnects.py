"""A pull is answered with its own version, also where its connection broke after later pushes had been taken in."""

from __future__ import annotations

import random

import numpy as np
import pytest

from store_cluster import constant, key_of, store_of
from store_simulation import Simulation
from weft_kvstore.settings import LinkSettings

STEPS = 40


def simulated(slots: int, settings: LinkSettings | None = None) -> Simulation:
    keys = [constant(key_of("w", (64,), slots), 0.0)]
    return Simulation(store_of(keys, slots=slots, shards=1, slice_bytes=64, hyper={"lr": 1.0}), settings)


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("seed", range(8))
def test_pulls_under_way_have_their_own_version_however_often_connections_break(seed: int, slots: int) -> None:
    choose = random.Random(seed)
    simulation = simulated(slots, LinkSettings(credit_bytes=256, frame_bytes=128))
    pulls = []
    for step in range(STEPS):
        if slots > 1:  # A slot may be two steps ahead of another.
            simulation.finish(choose, *(pull for version, pull in pulls if version == step - 1))
        for slot in range(slots):
            simulation.stores[slot].push("w", step, np.ones(64, np.float32))
            pulls.append((step + 1, simulation.stores[slot].pull("w", step + 1)))
        for _ in range(choose.randrange(12)):
            simulation.step(choose)
        if choose.random() < 0.3:
            simulation.cut(choose.randrange(slots), 0)
        if choose.random() < 0.3:
            simulation.now += 0.2
    simulation.finish(choose, *(pull for _, pull in pulls))
    for version, pull in pulls:
        np.testing.assert_array_equal(pull.result(0), np.full(64, -slots * version, np.float32))


def test_what_a_process_does_not_come_back_for_is_kept_no_longer_than_its_slot() -> None:
    choose = random.Random(1)
    simulation = simulated(1)
    for step in range(3):
        simulation.stores[0].push("w", step, np.ones(64, np.float32))
        simulation.stores[0].pull("w", step + 1)
    for _ in range(4):
        simulation.step(choose)
    job = simulation.shards[0].job
    simulation.shards[0].links.lose(job.links[0].identity)
    assert list(job.broken) == [0]
    last = job.broken[0]
    simulation.join(0, incarnation=2)
    simulation.settle(choose)
    assert not job.broken
    assert not last.has_undelivered
