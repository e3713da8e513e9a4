"""What a store costs: bytes at the socket, memory of a shard that has a large table or a client that never reads."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from store_cluster import WAIT_S, NamedClient, clients_of, constant, key_of, served, store_of, table_of
from store_processes import shard_processes
from store_proxies import TcpProxy
from store_raw import hello_of, pull_of, raw_peer
from weft_kvstore.settings import LinkSettings
from weft_kvstore.wire.messages import Welcome

MIB = 1 << 20


def test_bytes_at_the_socket_are_those_that_a_proxy_counts_and_follow_the_rows_not_the_table() -> None:
    rows, width, touched, steps = 100_000, 16, 500, 4
    settings = LinkSettings(silence_s=WAIT_S, same_host=False)
    description = store_of([table_of("t", (rows, width), 1)], slots=1, shards=1, slice_bytes=16 << 10)
    generator = np.random.Generator(np.random.Philox(3))
    with (
        served(description, settings) as (there, servers),
        TcpProxy(servers[0].endpoint) as proxy,
        clients_of(there, settings, [proxy.endpoint]) as (client,),
    ):
        for step in range(steps):
            ids = np.sort(generator.choice(rows, touched, replace=False))
            client.pull("t", step, ids).result(WAIT_S)
            client.push("t", step, np.ones((touched, width), np.float32), ids).result(WAIT_S)
        counted = client.statistics()
        told = {"up": (counted.bytes_sent, proxy.up), "down": (counted.bytes_received, proxy.down)}
        for way, (nbytes, seen) in told.items():
            assert abs(nbytes - len(seen)) <= 0.02 * len(seen), way
        values, ids_bytes = steps * touched * width * 4, steps * touched * 8
        assert values + 2 * ids_bytes <= counted.bytes_sent <= 1.03 * (values + 2 * ids_bytes)
        assert values <= counted.bytes_received <= 1.03 * values
        assert counted.links[0].payload_bytes_sent == values + 2 * ids_bytes
        assert counted.links[0].payload_bytes_received == values
        assert (counted.rows_pushed, counted.rows_pulled) == (steps * touched, steps * touched)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_table_of_2_gib_takes_the_memory_of_the_rows_that_are_touched(tmp_path: Path) -> None:
    """Adam keeps three arrays of 2 GiB. A touched row costs at most a page of each, and what is pulled nothing."""
    rows, width, touched = 1 << 23, 64, 2000
    description = store_of([table_of("t", (rows, width), 1)], slots=1, shards=1, rule="adam", slice_bytes=64 << 10)
    generator = np.random.Generator(np.random.Philox(4))
    with shard_processes(description, tmp_path) as (there, start):
        shard = start(0)
        before = shard.memory_bytes()
        assert before < 300 * MIB
        with clients_of(there, LinkSettings(silence_s=WAIT_S)) as (client,):
            ids = generator.integers(0, rows, touched)
            first = client.pull("t", 0, ids).result(WAIT_S)
            client.push("t", 0, np.ones((touched, width), np.float32), ids).result(WAIT_S)
            moved = client.pull("t", 1, ids).result(WAIT_S)
            assert np.all(moved < first)
            pages = 3 * touched * 4096 + touched * 4096
            after = shard.memory_bytes()
            assert after - before < pages + 48 * MIB
            for _ in range(4):
                client.pull("t", 1, generator.integers(0, rows, 20_000)).result(WAIT_S)
            assert shard.memory_bytes() - after < 64 * MIB


SLOW_BYTES = 4 << 20
STEPS = 60


def test_a_client_that_asks_and_never_reads_costs_a_bounded_memory_and_holds_up_nobody(tmp_path: Path) -> None:
    """It pulls every version and acknowledges none: its credit is used up at once, and what waits for it is bounded.
    Each waiting version would be a copy of the value, 240 MiB in all. The other client's steps all end."""
    settings = LinkSettings(credit_bytes=1 << 20)
    key = msgspec.structs.replace(constant(key_of("w", (SLOW_BYTES // 4,), 1), 0.0), slots=(0,))
    slow = store_of([key], slots=2, shards=1, slice_bytes=1 << 18, hyper={"lr": 1.0})
    with shard_processes(slow, tmp_path) as (description, start):
        process = start(0)
        with raw_peer(description.shards[0]) as reader, NamedClient(description, 0, settings=settings) as client:
            assert isinstance(reader.greet(hello_of(description, 1)), Welcome)
            gradient = np.ones(SLOW_BYTES // 4, np.float32)
            client.push("w", 0, gradient).result(WAIT_S)
            before, most = process.memory_bytes(), 0
            for number in range(1, STEPS + 1):
                reader.say(pull_of(number, 0, number, count=SLOW_BYTES >> 18))
                client.push("w", number, gradient).result(WAIT_S)
                value = client.pull("w", number + 1).result(WAIT_S)
                most = max(most, process.memory_bytes())
        assert np.all(value == -(STEPS + 1))
        assert most - before < 30 * SLOW_BYTES, f"{(most - before) >> 20} MiB"
