"""Keys in any order, a value beyond 2 GiB, and a client that asks and never reads."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from store_cluster import WAIT_S, clients_of, constant, gradients_of, key_of, served, store_of
from store_processes import shard_processes
from store_raw import RawPeer, hello_of, pull_of, raw_peer
from weft_graph.program import Update
from weft_kvstore.client.store_client import StoreClient
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.local.local_store import LocalStore
from weft_kvstore.settings import LinkSettings
from weft_kvstore.store import Store
from weft_kvstore.wire.messages import Welcome

GIB = 1 << 30

WIDE_BYTES = 2 * GIB + 5 * (1 << 20) + 3
"""Of one key: past 2^31, and no multiple of a slice."""


def test_each_worker_may_use_the_keys_in_an_order_of_its_own() -> None:
    """The first use too; the bits are those of a store in which all have the same order."""
    names = [f"k{number}" for number in range(12)]
    keys = [key_of(name, (7 * number + 1,), 3) for number, name in enumerate(names)]
    description = store_of(keys, slots=3, shards=3, slice_bytes=64, rule="adam")

    def trained(stores: Sequence[Store], orders: Sequence[Sequence[str]]) -> dict[str, bytes]:
        for step in range(3):
            for store, slot in zip(stores, range(3), strict=True):
                gradients = gradients_of(description, slot, step)
                for name in orders[slot]:
                    store.push(name, step, gradients[name])
            pulls = [(slot, name, stores[slot].pull(name, step + 1)) for slot in range(3) for name in orders[slot]]
            values = {(slot, name): pull.result(WAIT_S).tobytes() for slot, name, pull in pulls}
        assert all(value == values[0, name] for (_, name), value in values.items())
        return {name: values[0, name] for name in names}

    orders = [random.Random(slot).sample(names, len(names)) for slot in range(3)]
    assert len({tuple(order[:3]) for order in orders}) == 3
    with served(description) as (found, _), clients_of(found, LinkSettings()) as clients:
        shuffled = trained(clients, orders)
    with LocalStore(description) as store:
        assert trained([store, store.at_slot(1), store.at_slot(2)], [names] * 3) == shuffled


def available_bytes() -> int:
    """What the kernel says that programs may take; 0 where it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")), 0)


@pytest.mark.skipif(available_bytes() < 14 * GIB, reason="needs 14 GiB of memory that nobody uses")
def test_a_value_of_more_than_2_gib_passes_a_socket() -> None:
    """The gradient is zeros, which take no memory, but for marks at both ends and around 2^31."""
    key = msgspec.structs.replace(constant(key_of("wide", (WIDE_BYTES,), 1), 0.0), dtype="int8", update=Update.GRADIENT)
    description = store_of([key], slots=1, shards=1, slice_bytes=1 << 24)
    marks = np.array([0, 1, 2**31 - 1, 2**31, 2**31 + 1, WIDE_BYTES - 1])
    gradient = np.zeros(WIDE_BYTES, np.int8)
    gradient[marks] = np.arange(1, 7)
    settings = LinkSettings(silence_s=60.0, request_timeout_s=100.0, same_host=False)
    with served(description, settings) as (found, _), StoreClient(found, 0, settings=settings) as client:
        out = np.empty(WIDE_BYTES, np.int8)
        client.push("wide", 0, gradient).result(100)
        pulled = client.pull("wide", 1, out=out).result(100)
        assert pulled is out
        assert np.array_equal(pulled[marks], np.arange(1, 7))
        assert np.count_nonzero(pulled) == len(marks)
        statistics = client.statistics()
        assert min(statistics.bytes_sent, statistics.bytes_received) > WIDE_BYTES, "it passed the socket, both ways"


SLOW_BYTES = 4 << 20
STEPS = 60
CREDIT_BYTES = 1 << 20


def slow_store() -> StoreDescription:
    key = constant(key_of("w", (SLOW_BYTES // 4,), 1), 0.0)
    reads = msgspec.structs.replace(key, slots=(0,))
    return store_of([reads], slots=2, shards=1, slice_bytes=1 << 18, hyper={"lr": 1.0})


def test_a_client_that_asks_and_never_reads_costs_a_bounded_memory_and_holds_up_nobody(tmp_path: Path) -> None:
    """It pulls every version and acknowledges none: its credit is used up at once, and what waits for it is bounded.
    Each waiting version would be a copy of the value, 240 MiB in all. The other client's steps all end."""
    settings = LinkSettings(credit_bytes=CREDIT_BYTES)
    with shard_processes(slow_store(), tmp_path) as (description, start):
        process = start(0)
        with raw_peer(description.shards[0]) as reader, StoreClient(description, 0, settings=settings) as client:
            assert isinstance(reader.greet(hello_of(description, 1)), Welcome)
            gradient = np.ones(SLOW_BYTES // 4, np.float32)
            step(client, gradient, 0)
            before, most = process.memory_bytes(), 0
            for number in range(1, STEPS + 1):
                ask(reader, number)
                value = step(client, gradient, number)
                most = max(most, process.memory_bytes())
        assert np.all(value == -(STEPS + 1))
        assert most - before < 30 * SLOW_BYTES, f"{(most - before) >> 20} MiB"


def step(client: StoreClient, gradient: np.ndarray, number: int) -> np.ndarray:
    """Pushes, and pulls the value that this makes."""
    client.push("w", number, gradient).result(WAIT_S)
    return client.pull("w", number + 1).result(WAIT_S)


def ask(reader: RawPeer, version: int) -> None:
    """All slices of one version, as a request of its own."""
    reader.say(pull_of(version, 0, version, count=SLOW_BYTES >> 18))
