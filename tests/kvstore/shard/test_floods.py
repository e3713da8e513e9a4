"""Connections that say all they can: the steps of the job's other slots go on, and come out the same."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
import pytest

from store_cluster import WAIT_S, NamedClient, key_of, store_of
from store_floods import SLICE, SLICES, Say, flooding, nonsense, pings, pulls, pushes, small_pushes
from store_raw import hello_of
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.serving.shard_server import ShardServer
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.core import ShardCore
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.wire.codec import encode
from weft_kvstore.wire.messages import MAX_ENTRIES, Cancel, Pull, Reading

LINK = LinkSettings(silence_s=WAIT_S, request_timeout_s=WAIT_S, same_host=False)
FLOODING = 8
"""Slots that flood: all but slot 0, which trains on keys that it alone contributes to."""
RATE = 0.5
STEPS = 2


def disturbed() -> StoreDescription:
    flooded = key_of("flood", [SLICES * SLICE // 4], 1 + FLOODING, priority=5)
    flooded = msgspec.structs.replace(flooded, slots=tuple(range(1, 1 + FLOODING)))
    large = key_of("large", [1 << 18], 1, priority=5)
    keys = [flooded, large, *(key_of(f"k{number}", [256], 1, priority=9) for number in range(8))]
    return store_of(keys, slots=1 + FLOODING, shards=1, slice_bytes=SLICE, hyper={"lr": RATE})


@contextmanager
def served(description: StoreDescription) -> Iterator[StoreDescription]:
    with ShardServer(settings=LinkSettings(silence_s=WAIT_S)) as server:
        server.open(description, 0)
        yield msgspec.structs.replace(description, shards=(server.endpoint,))


@pytest.mark.parametrize("say", [pushes, small_pushes, pulls, pings, nonsense], ids=lambda say: say.__name__)
def test_slots_that_flood_stop_no_step_of_another_and_change_no_value(say: Say) -> None:
    with served(disturbed()) as description:
        names = [key.key for key in description.keys[1:]]
        gradients = [np.ones(key.shape, np.float32) for key in description.keys[1:]]
        with NamedClient(description, 0, settings=LINK) as honest, flooding(description, say) as flood:
            first = honest.pull(names, 0).result(WAIT_S)
            until = time.monotonic() + WAIT_S
            while flood.said <= 10 * FLOODING:
                assert time.monotonic() < until
                honest.pull("k0", 0).result(WAIT_S)
            for step in range(STEPS):
                honest.push(names, step, gradients).result(WAIT_S)
                last = honest.pull(names, step + 1).result(WAIT_S)
        for before, after in zip(first, last, strict=True):
            expected = before.copy()
            for _ in range(STEPS):
                expected -= np.float32(RATE) * np.float32(1)
            assert np.array_equal(after, expected)


def test_pulls_that_are_given_up_at_once_leave_nothing_open() -> None:
    """Each has as many ranges as a message may have, and takes a hundred times as long to open as others to be read."""
    slices = 2 * MAX_ENTRIES
    description = store_of([key_of("w", [slices * 16], 1)], slots=1, shards=1, slice_bytes=64)
    core = ShardCore(bytes(16), LinkSettings())
    core.open(JobShard(description, 0))
    core.receive(b"0", encode(hello_of(description, 0, incarnation=1)), 0.0)
    every_other = [(0, first, 1, 0) for first in range(0, slices, 2)]
    for request in range(1, 12):
        asked = Pull([(request, 1, False, Reading.OWN, False, every_other)])
        core.receive(b"0", encode(asked), 0.0)
        core.receive(b"0", encode(Cancel([request])), 0.0)
    while core.work.work_once():
        pass
    (peer,) = core.peers.values()
    assert (peer.pulls, peer.open_entries) == ({}, 0)
