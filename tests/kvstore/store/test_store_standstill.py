"""A process that stood still: it was not heard, and did not hear. Neither makes it, or the others, lost."""

from __future__ import annotations

import random
import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from store_cluster import WAIT_S, NamedClient, NamedStore, key_of, store_of
from store_simulation import Simulation
from weft_kvstore import local
from weft_kvstore.client import core
from weft_kvstore.errors import StoreLostError
from weft_kvstore.serving import shard_server
from weft_kvstore.serving.shard_server import ShardServer
from weft_kvstore.settings import LinkSettings

LINK = LinkSettings(silence_s=5.0, request_timeout_s=30.0)
STILL_S = 1000.0
DESCRIPTION = store_of([key_of("k", (8,), 2)], slots=2, shards=1)
GRADIENT = np.ones(8, np.float32)


def stood_still() -> Future[Any]:
    """Slot 0 waits for slot 1 when its process stops, for longer than a shard is waited for and a call may take."""
    simulation, choose = Simulation(DESCRIPTION, LINK), random.Random(0)
    simulation.settle(choose)
    simulation.stores[0].push("k", 0, GRADIENT)
    waiting = simulation.stores[0].pull("k", 1)
    simulation.settle(choose)
    simulation.now += STILL_S
    simulation.settle(choose)
    simulation.stores[1].push("k", 0, GRADIENT)
    simulation.settle(choose)
    return waiting


def test_a_client_that_stood_still_gives_neither_its_shards_nor_its_calls_up() -> None:
    waiting = stood_still()
    assert waiting.result(0).shape == (8,)


def test_it_would_without_noticing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "STALL_S", float("inf"))
    waiting = stood_still()
    with pytest.raises(StoreLostError, match=r"shard 0 .*has been silent"):
        waiting.result(0)


@pytest.mark.parametrize("notices", [True, False])
def test_a_store_in_a_process_that_stood_still_gives_no_call_up(monkeypatch: pytest.MonkeyPatch, notices: bool) -> None:
    stood_s = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + stood_s[0])
    monkeypatch.setattr(local, "time", clock)
    if not notices:
        monkeypatch.setattr(core, "STALL_S", float("inf"))
    with NamedStore(DESCRIPTION, settings=LINK) as store:
        store.push("k", 0, GRADIENT)
        waiting = store.pull("k", 1)
        store.pull("k", 0).result(WAIT_S)
        stood_s[0] = STILL_S
        if not notices:
            store.pull("k", 0)  # The thread looks at the time.
            with pytest.raises(StoreLostError, match=r"shard 0 .*has been silent"):
                waiting.result(WAIT_S)
            return
        store.pull("k", 0).result(WAIT_S)
        store.at_slot(1).push("k", 0, GRADIENT)
        assert waiting.result(WAIT_S).shape == (8,)


@pytest.mark.parametrize("notices", [True, False])
def test_a_shard_that_stood_still_gives_no_slot_up(monkeypatch: pytest.MonkeyPatch, notices: bool) -> None:
    if not notices:
        monkeypatch.setattr(shard_server, "STALL_S", float("inf"))
    stood_s = [0.0]
    with ShardServer(settings=LINK, clock=lambda: time.monotonic() + stood_s[0]) as server:
        description = msgspec.structs.replace(DESCRIPTION, shards=(server.endpoint,))
        server.open(description, 0)
        with NamedClient(description, 0, settings=LINK) as first:
            with NamedClient(description, 1, settings=LINK) as second:
                second.pull("k", 0).result(WAIT_S)
                first.push("k", 0, GRADIENT).result(WAIT_S)
                waiting = first.pull("k", 1)
                first.pull("k", 0).result(WAIT_S)
            until = time.monotonic() + WAIT_S
            while server.statistics()["links"] > 1:  # The shard has heard of its leave before its clock jumps.
                assert time.monotonic() < until
                first.pull("k", 0).result(WAIT_S)
            stood_s[0] = STILL_S
            if not notices:
                with pytest.raises(StoreLostError, match="slot 1 left 10"):
                    waiting.result(WAIT_S)
                return
            with NamedClient(description, 1, settings=LINK, incarnation=2) as successor:
                successor.push("k", 0, GRADIENT)
                assert waiting.result(WAIT_S).shape == (8,)
