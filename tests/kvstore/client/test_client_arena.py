"""The memory that a client shares, asked for by several threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from same_host_children import wait_until
from store_cluster import WAIT_S, key_of, served, store_of, wait_until_shared
from weft_kvstore.client.store_client import StoreClient
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.errors import StoreError
from weft_kvstore.same_host.layout import shared_layout
from weft_kvstore.same_host.memory import Arena, ArenaError, ClientMemory
from weft_kvstore.sharding import routing_of


class Slow:
    """Taking memory for arrays takes until `done`; `begun` is set when it has begun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.done = threading.Event(), threading.Event()
        self.times = 0
        reserve = Arena.reserve

        def slow(arena: Arena, start: int, stop: int, *, populate: bool = True) -> None:
            if not populate:
                self.times += 1
                self.begun.set()
                assert self.done.wait(WAIT_S)
            reserve(arena, start, stop, populate=populate)

        monkeypatch.setattr(Arena, "reserve", slow)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    return Slow(monkeypatch)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def memory_of(*shapes: tuple[int, ...]) -> ClientMemory:
    keys = [key_of(f"k{number}", shape, 1) for number, shape in enumerate(shapes)]
    return ClientMemory(keys, shared_layout(routing_of(store_of(keys, slots=1, shards=2))))


def test_who_waits_for_memory_holds_up_nobody_else(slow: Slow, pool: ThreadPoolExecutor) -> None:
    memory = memory_of((30, 5), (7,))
    slow.done.set()
    known = memory.gradient(1)
    slow.done.clear()
    slow.begun.clear()
    try:
        waiting = pool.submit(memory.gradient, 0)
        assert slow.begun.wait(WAIT_S)
        assert pool.submit(memory.offered).result(WAIT_S / 4).nbytes > 0, "a shard was found meanwhile"
        assert pool.submit(memory.gradient, 1).result(WAIT_S / 4) is known
        assert not waiting.done()
    finally:
        slow.done.set()
    assert waiting.result(WAIT_S).shape == (30, 5)
    memory.close()


def test_threads_that_ask_at_once_get_the_same_array(slow: Slow, pool: ThreadPoolExecutor) -> None:
    memory = memory_of((30, 5))
    asked = [pool.submit(memory.value, 0) for _ in range(4)]
    assert slow.begun.wait(WAIT_S)
    slow.done.set()
    first, *others = [one.result(WAIT_S) for one in asked]
    assert all(one is first for one in others)
    assert memory.values == {0: first}
    assert slow.times == 1
    memory.close()


def test_memory_that_is_being_taken_when_it_is_closed_stays_good(slow: Slow, pool: ThreadPoolExecutor) -> None:
    memory = memory_of((30, 5))
    asked = pool.submit(memory.gradient, 0)
    assert slow.begun.wait(WAIT_S)
    closing = pool.submit(memory.close)
    slow.done.set()
    closing.result(WAIT_S)
    found = asked.result(WAIT_S)
    found[:] = 3.0
    assert np.all(found == 3.0)
    assert memory.gradients == {}
    assert memory.gradient(0) is memory.gradient(0)


class SlowStages:
    """Taking memory for stages and windows takes until `done`, and fails where there is none `left`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.done = threading.Event(), threading.Event()
        self.left = True
        self.threads: list[str] = []
        reserve = Arena.reserve

        def slow(arena: Arena, start: int, stop: int, *, populate: bool = True) -> None:
            if populate:
                self.threads.append(threading.current_thread().name)
                self.begun.set()
                assert self.done.wait(WAIT_S)
                if not self.left:
                    raise ArenaError("no memory is left")
            reserve(arena, start, stop, populate=populate)

        monkeypatch.setattr(Arena, "reserve", slow)


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowStages]:
    made = SlowStages(monkeypatch)
    yield made
    made.done.set()


def two_shards() -> StoreDescription:
    return store_of([key_of("k", (64,), 1)], slots=1, shards=2, slice_bytes=128, hyper={"lr": 0.5})


def a_step(client: StoreClient, step: int) -> float:
    client.push("k", step, np.ones(64, np.float32)).result(WAIT_S)
    return float(client.pull("k", step + 1).result(WAIT_S)[0])


def test_messages_go_on_while_memory_for_shards_is_taken(stages: SlowStages) -> None:
    with served(two_shards()) as (description, shards), StoreClient(description, 0) as client:
        before = float(client.pull("k", 0).result(WAIT_S)[0])
        assert stages.begun.wait(WAIT_S)
        assert a_step(client, 0) == before - 0.5
        assert not any(link.same_host for link in client.statistics().links)
        stages.done.set()
        wait_until_shared([client])
        assert a_step(client, 1) == before - 1.0
        assert stages.threads == ["weft-arena"]
        assert sum(shard.statistics()["refused_arenas"] for shard in shards) == 0


def test_without_memory_for_shards_payloads_travel_as_bytes(stages: SlowStages) -> None:
    stages.left = False
    with served(two_shards()) as (description, _), StoreClient(description, 0) as client:
        before = float(client.pull("k", 0).result(WAIT_S)[0])
        assert stages.begun.wait(WAIT_S)
        stages.done.set()
        wait_until(lambda: not client._sockets._shares)
        assert a_step(client, 0) == before - 0.5
        assert not any(link.same_host or link.trouble for link in client.statistics().links)
        assert stages.threads == ["weft-arena"]


def test_a_client_may_be_closed_while_memory_is_taken(stages: SlowStages, pool: ThreadPoolExecutor) -> None:
    with served(two_shards()) as (description, _):
        client = StoreClient(description, 0)
        client.pull("k", 0).result(WAIT_S)
        assert stages.begun.wait(WAIT_S)
        pulling = client.pull("k", 1)
        closing = pool.submit(client.close)
        with pytest.raises(StoreError, match="was closed"):
            pulling.result(WAIT_S)
        stages.done.set()
        closing.result(WAIT_S)
