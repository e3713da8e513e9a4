"""The memory that a client shares, asked for by several threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from store_cluster import WAIT_S, key_of, store_of
from weft_kvstore.same_host.client_arrays import ClientMemory
from weft_kvstore.same_host.memory import SharedMemory
from weft_kvstore.sharding import routing_of


class Slow:
    """Taking memory for arrays takes until `done`; `begun` is set when it has begun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.done = threading.Event(), threading.Event()
        self.times = 0
        reserve = SharedMemory.reserve

        def slow(memory: SharedMemory, start: int, stop: int) -> None:
            self.times += 1
            self.begun.set()
            assert self.done.wait(WAIT_S)
            reserve(memory, start, stop)

        monkeypatch.setattr(SharedMemory, "reserve", slow)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    return Slow(monkeypatch)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def memory_of(*shapes: tuple[int, ...]) -> ClientMemory:
    keys = [key_of(f"k{number}", shape, 1) for number, shape in enumerate(shapes)]
    return ClientMemory(keys, routing_of(store_of(keys, slots=1, shards=2)))


def test_who_waits_for_memory_holds_up_nobody_else(slow: Slow, pool: ThreadPoolExecutor) -> None:
    memory = memory_of((30, 5), (7,))
    slow.done.set()
    known = memory.gradient(1)
    slow.done.clear()
    slow.begun.clear()
    try:
        waiting = pool.submit(memory.gradient, 0)
        assert slow.begun.wait(WAIT_S)
        assert pool.submit(memory.gradient, 1).result(WAIT_S / 4) is known
        assert not waiting.done()
    finally:
        slow.done.set()
    assert waiting.result(WAIT_S).shape == (30, 5)
    memory.close()


def test_threads_that_ask_at_once_get_the_same_array(slow: Slow, pool: ThreadPoolExecutor) -> None:
    memory = memory_of((30, 5))
    asked = [pool.submit(memory.gradient, 0) for _ in range(4)]
    assert slow.begun.wait(WAIT_S)
    slow.done.set()
    first, *others = [one.result(WAIT_S) for one in asked]
    assert all(one is first for one in others)
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
    assert memory.gradient(0) is memory.gradient(0)
