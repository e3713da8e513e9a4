"""A pull is answered with its own version, also where its connection broke after later pushes had been taken in."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest

from store_cluster import NamedClient, constant, key_of, store_of, table_of
from store_proxies import TcpProxy
from store_simulation import Simulation
from weft_kvstore.errors import StoreError, StoreLostError
from weft_kvstore.serving.shard_server import ShardServer
from weft_kvstore.settings import LinkSettings

STEPS = 40
PATIENCE_S = 60.0


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
    clients = simulation.shards[0].links.clients
    last = clients[0]
    simulation.shards[0].links.disconnect(last.identity)
    assert last.pulls or last.outbox.queued_slices
    simulation.join(0, incarnation=2)
    simulation.settle(choose)
    assert clients[0] is not last
    assert (last.pulls, last.outbox.queued_slices) == ({}, 0)


def test_pulls_that_are_given_up_without_a_connection_leave_nothing_on_the_shard() -> None:
    """Its Cancel cannot be said then, and one that was said may be lost with the connection."""
    choose = random.Random(1)
    simulation = simulated(2)
    store = simulation.stores[0]
    for _ in range(3):
        store.pull("w", 1)
    simulation.settle(choose)
    peer = simulation.shards[0].links.clients[0]
    assert len(peer.pulls) == 3
    simulation.cut(0, 0)
    core = simulation.clients[0]
    for operation in list(core.open.values())[:2]:
        core.end(operation, StoreError("given up"))
    simulation.settle(choose)
    assert peer.identity is not None
    assert len(peer.pulls) == 1
    assert not peer.unrepeated


def test_a_pull_that_comes_again_twice_has_its_version_all_the_same() -> None:
    """It was answered while there was no connection, and what answered it was lost with the next one."""
    choose = random.Random(3)
    simulation = simulated(1)
    store = simulation.stores[0]
    for step in range(2):
        store.push("w", step, np.ones(64, np.float32))
    simulation.settle(choose)
    pull = store.pull("w", 2)
    peer = simulation.shards[0].links.clients[0]
    for _ in range(100):
        simulation.step(choose)
        if peer.outbox.in_flight_bytes:
            break
    simulation.shards[0].links.disconnect(peer.identity)
    assert peer.outbox.queued_slices == 4
    store.push("w", 2, np.ones(64, np.float32))
    simulation.settle(choose)
    np.testing.assert_array_equal(pull.result(0), np.full(64, -2, np.float32))


@pytest.mark.parametrize("kind", ["dense", "rows"])
@pytest.mark.parametrize("hears", [False, True])
def test_a_pull_whose_failure_is_lost_with_its_connection_fails_on_the_next_one(kind: str, *, hears: bool) -> None:
    """The shard gets the ids of rows no second time. Who `hears` of it cancels the pull, and that is lost."""
    choose = random.Random(1)
    keys = [constant(key_of("w", (64,), 2), 0.0), constant(table_of("t", (30, 3), 2), 0.0)]
    settings = LinkSettings(silence_s=5.0, request_timeout_s=60.0)
    simulation = Simulation(store_of(keys, slots=2, shards=1, hyper={"lr": 1.0}), settings)
    store = simulation.stores[0]
    pull = store.pull("w", 1) if kind == "dense" else store.pull("t", 1, np.arange(3))
    simulation.settle(choose)
    simulation.silent.add(1)
    shard = simulation.shards[0]
    peer = shard.links.clients[0]
    while not peer.failed:
        simulation.now += 0.1
        while simulation.step(choose):
            pass
        shard.tick(simulation.now)
    core = simulation.clients[0]
    while hears and core.open:
        assert simulation.step(choose)
    assert (not core.open, len(peer.failed)) == (hears, 1)
    simulation.cut(0, 0)
    simulation.finish(choose, pull)
    with pytest.raises(StoreLostError, match="slot 1 has been silent"):
        pull.result(0)
    simulation.settle(choose)
    assert not peer.failed


def test_a_frame_that_takes_longer_to_arrive_than_a_silent_link_is_kept_arrives_each_way() -> None:
    """The kernel tells that it moves: its connection is not given up, nor are shard and slot for lost."""
    settings = LinkSettings(silence_s=0.6, request_timeout_s=PATIENCE_S, same_host=False)
    key = constant(key_of("w", (1 << 20,), 1), 0.0)
    description = store_of([key], slots=1, shards=1, slice_bytes=1 << 22, hyper={"lr": 1.0})
    with ShardServer(settings=settings) as server, TcpProxy(server.endpoint, rate=4e6) as proxy:
        described = msgspec.structs.replace(description, shards=(proxy.endpoint,))
        server.open(described, 0)
        with NamedClient(described, 0, settings=settings) as client:
            client.pull("w", 0).result(PATIENCE_S)
            client.push("w", 0, np.ones(1 << 20, np.float32)).result(PATIENCE_S)
            np.testing.assert_array_equal(client.pull("w", 1).result(PATIENCE_S), np.float32(-1))
