"""What a plan asks of the store, and that a run goes through with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from server_specs import linear, save_rows, spec, spec_json
from weft.api.agent import AgentKind, WorkerAllocation
from weft.api.job import JobSpec
from weft.api.lifecycle import AllocationEvent
from weft_graph.convert import convert
from weft_graph.json_form import graph_to_json
from weft_kvstore.description import description_from_json
from weft_kvstore.local import LocalStore
from weft_server.lease import Lease
from weft_server.memory_check import Bounds
from weft_server.orders import allocation_of
from weft_server.plan import JobPlan
from weft_server.planning import plan_of
from weft_server.reading import describe, read_and_check
from weft_worker.run import Run
from weft_worker.settings import RunSettings
from worker_graphs import METRICS, normalized
from worker_jobs import WAIT_S, Records


def frozen(rows: Path, *names: str, **changes: Any) -> JobPlan:
    """The plan of the linear job with these parameters not trained."""
    graph = linear()
    kept = tuple(replace(each, trainable=each.name not in names) for each in graph.parameters)
    document = spec_json(rows, graph=graph_to_json(replace(graph, parameters=kept)), **changes)
    return read_and_check(JobSpec.model_validate(document), None, Bounds())


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return save_rows(tmp_path / "rows.npz")


def test_the_store_waits_for_nobody_about_a_key_that_no_step_sends(rows: Path) -> None:
    plan = frozen(rows, "b")
    assert {key.key: key.slots for key in plan.keys} == {"w": [0, 1], "b": []}


def test_every_slot_contributes_to_running_statistics(rows: Path) -> None:
    programs = convert(normalized(), loss="loss", metrics=METRICS)
    job = spec(rows)
    plan = plan_of(job, programs, describe(job.data, None))
    assert {key.key for key in plan.keys if key.update == "mean"} == {"mean", "var"}
    assert all(key.slots == [0, 1] for key in plan.keys)


def test_three_slots_train_beside_a_frozen_parameter_also_those_without_samples(rows: Path) -> None:
    """Batches of two leave the third slot nothing to do at any step."""
    data = {**spec_json(rows)["data"], "batch": 2}
    plan = frozen(rows, "b", data=data, parallelism={"workers": 3, "shards": 1})
    store = plan.store("job", 1, [""])
    with LocalStore(description_from_json(store.model_dump(mode="json"))) as local:
        before = {key: local.pull(key, 0).result(WAIT_S) for key in ("w", "b")}
        records = [Records() for _ in range(3)]
        runs = []
        for slot, told in enumerate(records):
            lease = Lease(f"l{slot}", 1, "job", f"a{slot}", f"worker-{slot}", AgentKind.WORKER, slot)
            allocation = allocation_of(lease, plan, store, keeper=slot == 0)
            assert isinstance(allocation, WorkerAllocation)
            opened = local.at_slot(slot)
            runs.append(Run(allocation, told, told, RunSettings(), store=lambda _task, opened=opened: opened))
        for run in runs:
            run.start()
        for run, told in zip(runs, records, strict=True):
            assert told.over.wait(WAIT_S)
            assert run.join(WAIT_S)
    assert [told.last for told in records] == [(AllocationEvent.DONE, None)] * 3
    after = load(records[0].uploads[-1][0])
    np.testing.assert_array_equal(after["b"], before["b"])
    assert not np.array_equal(after["w"], before["w"])
