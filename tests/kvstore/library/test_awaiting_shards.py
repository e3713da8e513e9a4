"""What a process is told that waits for its shards, or for its slot."""

from __future__ import annotations

import re
import threading

import msgspec
import numpy as np
import pytest

from free_ports import free_port
from same_host_children import wait_until
from weft_kvstore import KVStore, StoreRefusedError, describe
from weft_kvstore.library import steps as library_steps
from weft_kvstore.serving.shard_server import ShardServer

WAIT_S = 60.0


def test_a_second_worker_of_a_slot_is_told_that_it_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    description = describe({"w": (3,)}, slots=2, shards=["tcp://127.0.0.1:0"], rule="sgd")
    with ShardServer() as server:
        here = msgspec.structs.replace(description, shards=(server.endpoint,))
        server.open(here, 0)
        with KVStore.connect(here, 0) as first:
            told = r"slot 0 is taken by another process that is alive, as incarnation 1; use another slot, or a higher"
            with pytest.raises(StoreRefusedError, match=told) as raised:
                KVStore.connect(here, 0, wait_s=0.3)
            assert "python -m" not in str(raised.value)
            with KVStore.connect(here, 0, incarnation=2) as second:
                second.push("w", np.ones(3, np.float32)).result(WAIT_S)
            first.close()
    assert caplog.records == []


def test_a_wait_for_shards_that_was_announced_is_told_anew_as_they_come_and_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library_steps, "SAID_AFTER_S", 0.1)
    endpoints = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
    description = describe({"w": (3,)}, shards=endpoints, rule="sgd")
    made: list[KVStore] = []
    connecting = threading.Thread(target=lambda: made.append(KVStore.connect(description, 0, wait_s=WAIT_S)))
    connecting.start()

    def await_lines(count: int) -> list[str]:
        wait_until(lambda: len(caplog.messages) >= count)
        return caplog.messages

    assert f"shards 0 at {endpoints[0]}, 1 at {endpoints[1]} did not answer" in await_lines(1)[0]
    with ShardServer(endpoints[0]) as zero:
        zero.open(description, 0)
        assert f"s: shard 1 at {endpoints[1]} did not answer" in await_lines(2)[1]
        with ShardServer(endpoints[1]) as one:
            one.open(description, 1)
            assert re.fullmatch(r"slot 0 goes on after \d+ s: every shard talks with it", await_lines(3)[2])
            connecting.join(WAIT_S)
            made[0].close()
