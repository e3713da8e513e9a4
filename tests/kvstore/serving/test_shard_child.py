"""A shard of one job in a process of its own: it serves, fails and dies alone."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from store_cluster import WAIT_S, key_of, store_of
from weft_kvstore.client.store_client import StoreClient
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.serving.children import Child, Forkserver
from weft_kvstore.serving.shard_child import ShardTask, statistics_of
from weft_kvstore.settings import LinkSettings

LINK = LinkSettings(silence_s=WAIT_S, request_timeout_s=WAIT_S)
ANY = "tcp://127.0.0.1:0"


@pytest.fixture(scope="module")
def forkserver() -> Iterator[Forkserver]:
    made = Forkserver("weft_kvstore.serving.shard_child")
    yield made
    made.close()


def described(job: str = "job", **changed: Any) -> StoreDescription:
    description = store_of([key_of("w", (300,), 1)], slots=1, shards=1, job=job)
    return msgspec.structs.replace(description, shards=("",), **changed)


def begun(
    forkserver: Forkserver, description: StoreDescription, *binds: str, memory_bytes: int | None = None
) -> tuple[Child, Iterator[dict[str, Any]]]:
    task = ShardTask("shard-0", json.loads(msgspec.json.encode(description)), 0, binds or (ANY,))
    child = forkserver.fork(memory_bytes)
    child.send(msgspec.to_builtins(task))
    return child, child.lines()


def connected(description: StoreDescription, endpoint: str) -> StoreClient:
    return StoreClient(msgspec.structs.replace(description, shards=(endpoint,)), 0, settings=LINK)


def stop(child: Child, said: Iterator[dict[str, Any]]) -> None:
    stopping = threading.Thread(target=child.stop)
    stopping.start()
    assert list(said) == []
    stopping.join(WAIT_S)
    assert child.ending == "its process ended with status 0"


def test_a_child_serves_its_job_tells_its_statistics_and_ends(forkserver: Forkserver) -> None:
    child, said = begun(forkserver, described())
    endpoint = next(said)["ready"]
    client = connected(described(), endpoint)
    client.push("w", 0, np.ones(300, np.float32)).result(WAIT_S)
    assert client.pull("w", 1).result(WAIT_S).shape == (300,)
    child.send({})
    statistics = statistics_of(next(said))
    assert (statistics.jobs, statistics.links, statistics.per_job[0].job) == (1, 1, "job")
    client.close()
    stop(child, said)


@pytest.mark.parametrize(
    ("changed", "told"),
    [({"rule": "magic"}, "rule: 'magic' is none of"), ({"slice_bytes": 1 << 30}, "slice_bytes: 1 to")],
)
def test_what_cannot_be_opened_fails_by_its_reason(forkserver: Forkserver, changed: dict[str, Any], told: str) -> None:
    _, said = begun(forkserver, described(**changed))
    (failed,) = said
    assert told in failed["failed"]


def test_a_port_that_is_taken_is_passed_over(forkserver: Forkserver) -> None:
    first, of_first = begun(forkserver, described())
    taken = next(of_first)["ready"]
    second, of_second = begun(forkserver, described(), taken, ANY)
    assert next(of_second)["ready"] != taken
    stop(second, of_second)
    third, of_third = begun(forkserver, described(), taken)
    assert "cannot bind" in next(of_third)["failed"]
    assert list(of_third) == []
    assert third.ending == "its process ended with status 0"
    stop(first, of_first)


def test_a_job_that_wants_more_memory_than_it_may_have_fails_alone(forkserver: Forkserver) -> None:
    other, of_other = begun(forkserver, described())
    client = connected(described(), next(of_other)["ready"])
    large = store_of([key_of("w", (1 << 28,), 1)], slots=1, shards=1, job="large")
    _, said = begun(forkserver, msgspec.structs.replace(large, shards=("",)), memory_bytes=1 << 29)
    (failed,) = said
    assert "allocate" in failed["failed"] or "Memory" in failed["failed"]
    client.push("w", 0, np.ones(300, np.float32)).result(WAIT_S)
    assert client.pull("w", 1).result(WAIT_S).shape == (300,)
    client.close()
    stop(other, of_other)


def test_of_sixteen_shards_at_once_nothing_stays(forkserver: Forkserver) -> None:
    first, said = begun(forkserver, described())
    next(said)
    server = int(Path(f"/proc/{first.process}/stat").read_text().rpartition(")")[2].split()[1])
    stop(first, said)
    before = len(os.listdir("/proc/self/fd"))
    shards = [begun(forkserver, described(f"job-{number}")) for number in range(16)]
    endpoints = {next(said)["ready"] for _, said in shards}
    assert len(endpoints) == 16
    for child, said in shards:
        stop(child, said)
    last, said = begun(forkserver, described())  # It is forked once the others are done with.
    next(said)
    assert Path(f"/proc/{server}/task/{server}/children").read_text().split() == [str(last.process)]
    stop(last, said)
    assert len(os.listdir("/proc/self/fd")) == before
