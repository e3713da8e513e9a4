"""Steps whose gradients leave with the pull of what they make: the same bits as sent and fetched apart."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from store_cluster import NamedStore
from weft.api.lifecycle import AllocationEvent
from weft_graph.ir import Graph
from weft_graph.types import DType
from weft_kvstore.description.records import descriptions
from weft_kvstore.serving.shard_server import ShardServer
from weft_worker import run as worker_run
from weft_worker.engine.serial import SerialEngine
from weft_worker.sharded_store import ShardedStore
from weft_worker.step.inline import SharedValues
from weft_worker.task import task_of
from worker_graphs import mlp, normalized
from worker_jobs import Job, Records, programs_of, run_all, save_data

ROWS = 101
"""In batches of 50 the third step of each pass has one sample, and slot 1 has none."""


def job_of(data: Path, graph: Callable[[DType], Graph], **options: object) -> Job:
    return Job(
        programs_of(graph(DType.FLOAT32)),
        data,
        **{"batch": 50, "steps": 8, "slots": 2, "rule": "momentum", "train": (0, ROWS), **options},  # type: ignore[arg-type]
    )


def over_two_shards(data: Path, graph: Callable[[DType], Graph], **options: object) -> list[Records]:
    with ExitStack() as stack:
        servers = [stack.enter_context(ShardServer("tcp://127.0.0.1:0")) for _ in range(2)]
        for server in servers:
            server.start()
        job = job_of(data, graph, shards=tuple(server.endpoint for server in servers), **options)
        for number, server in enumerate(servers):
            server.open(descriptions.from_builtins(job.store_spec().model_dump(mode="json")), number)
        found = run_all(job)
    assert [records.last for records in found] == [(AllocationEvent.DONE, None)] * 2
    return found


@pytest.mark.parametrize("graph", [mlp, normalized], ids=["mlp", "running statistics, which no step fetches"])
def test_a_step_in_one_call_gives_the_same_bits(tmp_path, monkeypatch, graph):
    data = save_data(tmp_path / "samples.npz", ROWS + 20, "float32")
    called: list[int] = []
    send = SharedValues.send
    monkeypatch.setattr(SharedValues, "send", lambda *args, **more: (called.append(args[2]), send(*args, **more))[1])
    together = over_two_shards(data, graph)
    assert set(called) == set(range(8))
    monkeypatch.setattr(worker_run, "_needs_one_pushpull", lambda task, device: False)
    apart = over_two_shards(data, graph)
    assert [one.uploads for one in together] == [one.uploads for one in apart]
    assert [one.metrics for one in together] == [one.metrics for one in apart]


def test_values_arrive_where_they_are_read_and_a_version_that_nobody_took_is_passed_by(tmp_path):
    job = job_of(save_data(tmp_path / "samples.npz", ROWS, "float32"), mlp, slots=1)
    description = task_of(job.allocation(0)).description
    keys = [key.key for key in description.keys]
    with NamedStore(description) as store:
        shared = SharedValues(ShardedStore(store, description, 0), SerialEngine({}).variable("values"))
        first = [value.copy() for value in shared.values(keys, 0)]
        for step in range(2):  # Version 1 is on its way when version 2 is asked for.
            gradients = [np.ones_like(value) for value in first]
            shared.send(keys, step, gradients, goes_on=True, in_place=True)
        found = shared.values(keys, 2)
        assert all(value is store.own_value(key) for key, value in zip(keys, found, strict=True))
        for value, kept in zip(found, store.pull(keys, 2).result(), strict=True):
            np.testing.assert_array_equal(value, kept)
        shared.send(keys, 2, gradients, goes_on=False, in_place=True)
        shared.end(2)
        assert store.pull(keys, 3, with_versions=True).result().lowest.tolist() == [3] * len(keys)
