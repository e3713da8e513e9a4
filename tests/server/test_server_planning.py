"""What a plan asks of the store, and that a run goes through with it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from safetensors.numpy import load

import rule_documents
from server_specs import linear, save_rows, spec, spec_json
from store_cluster import NamedStore
from weft.api.agent import AgentKind, WorkerAllocation
from weft.api.dry_run import Passes
from weft.api.job import JobSpec
from weft.api.lifecycle import AllocationEvent
from weft_graph.convert import convert
from weft_graph.ir import Graph, Initializer, Input, Node, Parameter
from weft_graph.json_form import graph_to_json
from weft_graph.types import BATCH, DType, TensorType
from weft_kvstore.description.records import descriptions
from weft_server.control.leases import Lease
from weft_server.control.orders import allocation_of
from weft_server.planning.check import describe, read_and_check
from weft_server.planning.dry_run import dry_run_of
from weft_server.planning.estimate import Bounds
from weft_server.planning.plan import JobPlan, plan_of
from weft_server.planning.rule_planning import plan_rule
from weft_server.refusals import JobRefusedError
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
    plan = plan_of(job, plan_rule(job.optimizer), programs, describe(job.data, None))
    assert {key.key for key in plan.keys if key.update == "mean"} == {"mean", "var"}
    assert all(key.slots == [0, 1] for key in plan.keys)


@pytest.mark.parametrize(
    ("changes", "beside"), [({}, []), ({"clip_norm": 1.0}, ["gradient_norm", "loss_scale", "skipped_steps"])]
)
def test_a_plan_has_the_names_of_all_metrics_that_workers_report(
    rows: Path, changes: dict[str, Any], beside: list[str]
) -> None:
    plan = read_and_check(spec(rows, **changes), None, Bounds())
    assert plan.metric_names == ["loss", *spec(rows).metrics, *beside]


def test_three_slots_train_beside_a_frozen_parameter_also_those_without_samples(rows: Path) -> None:
    """Batches of two leave the third slot nothing to do at any step."""
    data = {**spec_json(rows)["data"], "batch_size": 2}
    plan = frozen(rows, "b", data=data, parallelism={"workers": 3, "shards": 1})
    store = plan.store("job", 1, [""])
    with NamedStore(descriptions.from_builtins(store.model_dump(mode="json"))) as local:
        before = {key: local.pull(key, 0).result(WAIT_S) for key in ("w", "b")}
        records = [Records() for _ in range(3)]
        runs = []
        for slot, told in enumerate(records):
            lease = Lease(f"l{slot}", 1, "job", f"a{slot}", f"worker-{slot}", AgentKind.WORKER, slot)
            allocation = allocation_of(lease, plan, store, keeper=slot == 0)
            assert isinstance(allocation, WorkerAllocation)
            allocation = allocation.model_copy(update={"programs": plan.programs})  # the agent fetches them
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


def words(
    parallelism: dict[str, Any] | None = None, *, table: dict[str, bool] | None = None, **changes: Any
) -> dict[str, Any]:
    """A job on a table of ten rows of 4, read by ids of the column `labels`, and a dense layer behind it. `table` has
    what else the table's parameter says."""
    draw = Initializer("RandomUniform", {"low": -0.5, "high": 0.5})
    graph = Graph(
        name="words",
        inputs=(Input("ids", TensorType(DType.INT64, (BATCH,))), Input("y", TensorType(DType.INT64, (BATCH,)))),
        parameters=(
            Parameter("table", TensorType(DType.FLOAT32, (10, 4)), draw, **(table or {})),
            Parameter("w", TensorType(DType.FLOAT32, (4, 3)), draw),
        ),
        nodes=(
            Node("Gather", "rows", ("table", "ids"), ("rows",)),
            Node("MatMul", "scores", ("rows", "w"), ("scores",)),
            Node("SoftmaxCrossEntropyLoss", "cross_entropy", ("scores", "y"), ("loss",)),
        ),
        outputs=("loss",),
    )
    data = {"columns": {"ids": "labels", "y": "labels"}, "batch_size": 4}
    changes = {"parallelism": parallelism or {}, **changes}
    return {"graph": graph_to_json(graph), "data": data, **changes}


def spec_of(rows: Path, document: dict[str, Any]) -> JobSpec:
    whole = spec_json(rows, **document)
    whole["data"]["source"] = {"type": "numpy", "path": str(rows)}
    return JobSpec.model_validate(whole)


def planned(rows: Path, document: dict[str, Any]) -> JobPlan:
    return read_and_check(spec_of(rows, document), None, Bounds())


def test_a_table_is_kept_and_sent_by_rows_and_costs_workers_its_rows_alone(rows: Path) -> None:
    plan = planned(rows, words({"workers": 2, "shards": 3}, optimizer={"name": "adam"}))
    assert {key.key: (key.rows, key.slots) for key in plan.keys} == {"table": (True, [0, 1]), "w": (False, [0, 1])}
    run = dry_run_of(plan, None)
    assert run.worker_memory.parameter_bytes == 4 * 3 * 4
    assert (run.store_memory.table_bytes, run.store_memory.table_state_bytes) == (160, 320)
    assert (run.store_memory.parameter_bytes, run.store_memory.state_bytes) == (48, 96)
    # Two samples a worker: two rows of 16 bytes with their ids, both ways.
    assert run.step_traffic.fetched_row_bytes == run.step_traffic.sent_row_bytes == 2 * 2 * (16 + 8)
    assert (run.step_traffic.fetched_bytes, run.step_traffic.sent_bytes) == (96, 96)
    assert plan.slices == 2


def test_where_workers_update_dense_gradients_have_keys_of_their_own_and_tables_have_not(rows: Path) -> None:
    plan = planned(rows, words({"workers": 2, "shards": 1, "update": "workers"}, optimizer={"name": "adam"}))
    assert [(key.key, key.update, key.slots) for key in plan.keys] == [
        ("table", "rule", [0, 1]),
        ("w", "rule", []),
        ("w/grad", "gradient", [0, 1]),
    ]
    weight, gradient = plan.keys[1:]
    assert (gradient.shape, gradient.dtype, gradient.priority) == (weight.shape, weight.dtype, weight.priority)
    assert [each.name for each in plan.parameters] == ["table", "w"]
    run = dry_run_of(plan, None)
    assert run.worker_memory.state_bytes == 2 * 48
    assert (run.store_memory.parameter_bytes, run.store_memory.state_bytes) == (96, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"parallelism": {"workers": 2, "mode": "async"}},
        {"parallelism": {"workers": 2, "update": "workers"}},
        {"parallelism": {"workers": 2, "merge": "arrival"}},
        {"accumulate": 2},
        {"ema": {"decay": 0.9}},
        {"clip_norm": 1.0},
        {"parallelism": {"shards": 1}, "compression": {"gradients": {"kind": "fp16"}}},
        {"optimizer": {"name": "graph", "document": rule_documents.momentum()}},
    ],
    ids=str,
)
def test_a_table_that_is_not_lazy_has_standard_semantics_on_its_shards(rows: Path, changes: dict[str, Any]) -> None:
    for lazy in (True, False):
        plan = planned(rows, words(**{"optimizer": {"name": "adam"}, **changes}, table={"lazy_update": lazy}))
        table, *others = plan.keys
        assert (table.key, table.rows, table.sparse) == ("table", True, "lazy" if lazy else "standard")
        assert {key.sparse for key in others} == {"lazy"}
        descriptions.from_builtins(plan.store("job", 1, [""]).model_dump(mode="json"))


def test_a_table_that_is_not_lazy_costs_its_shards_a_number_a_row(rows: Path) -> None:
    lazy, standard = (
        dry_run_of(
            planned(rows, words({"shards": 1}, optimizer={"name": "adam"}, table={"lazy_update": each})), None
        ).store_memory
        for each in (True, False)
    )
    assert standard.table_state_bytes == lazy.table_state_bytes + 10 * 8
    assert standard.largest_shard_bytes > lazy.largest_shard_bytes


def test_only_a_table_that_a_rule_updates_has_standard_semantics(rows: Path) -> None:
    dense = planned(rows, words(table={"lazy_update": False, "row_sparse": False}))
    frozen = planned(rows, words(table={"lazy_update": False, "trainable": False}))
    assert [(plan.keys[0].rows, plan.keys[0].sparse) for plan in (dense, frozen)] == [(False, "lazy"), (True, "lazy")]


@pytest.mark.parametrize(
    ("rule", "because"),
    [
        ({"name": "lamb"}, "lazy_update is false, and lamb divides by the norm of a key's whole update"),
        (
            {"name": "graph", "document": rule_documents.normalized()},
            "lazy_update is false, and node 'total' (ReduceSum) does not go element by element",
        ),
    ],
)
def test_a_table_that_is_not_lazy_is_dense_where_the_rule_needs_keys_whole(
    rows: Path, rule: dict[str, Any], because: str
) -> None:
    document = words(optimizer=rule, table={"lazy_update": False})
    plan = planned(rows, document)
    assert [(key.rows, key.whole, key.sparse) for key in plan.keys] == [(False, True, "lazy")] * 2
    run = dry_run_of(plan, None, spec_of(rows, document), Passes.SHORT)
    assert f"table is read by rows, and is dense all the same: {because}." in " ".join(run.text.split())
    assert run.worker_memory.recompute["off"] == run.worker_memory.train
    assert "dense though read by rows: table" in run.passes
    assert refusals(rows, words(optimizer=rule)), "with lazy updates it is a table, for which there is no such rule"


def test_async_is_told_to_the_store(rows: Path) -> None:
    plan = planned(rows, words({"workers": 2, "shards": 1, "mode": "async"}))
    assert plan.store("job", 1, [""]).mode == "async"


def test_a_plan_that_an_older_server_has_written_is_read(rows: Path) -> None:
    written = planned(rows, words()).model_dump(mode="json")
    for name in ("mode", "update", "keep_state", "dims", "state_arrays", "given"):
        del written[name]
    assert JobPlan.model_validate(written).mode == "sync"


def refusals(rows: Path, document: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(JobRefusedError) as refused:
        planned(rows, document)
    return [(error.pointer, error.detail) for error in refused.value.errors]


def test_async_workers_cannot_update_themselves(rows: Path) -> None:
    ((pointer, detail),) = refusals(rows, words({"mode": "async", "update": "workers"}))
    assert pointer == "/parallelism/update"
    assert detail.endswith("leave it out, or use sync mode")


@pytest.mark.parametrize(("workers", "shards"), [(1, 0), (2, 1)])
def test_one_worker_has_no_shard_unless_it_is_said_and_several_have_one(rows: Path, workers: int, shards: int) -> None:
    assert planned(rows, words({"workers": workers})).shards == shards
    assert planned(rows, words({"workers": workers, "shards": 2})).shards == 2


def test_several_workers_cannot_do_without_shards(rows: Path) -> None:
    with pytest.raises(ValidationError, match="2 workers share their parameters by shards: give at least 1") as refused:
        JobSpec.model_validate(spec_json(rows, parallelism={"workers": 2, "shards": 0}))
    assert refused.value.errors()[0]["loc"] == ("parallelism", "shards")


def test_what_is_compressed_on_its_way_is_refused_where_nothing_travels(rows: Path) -> None:
    compression = {"gradients": {"kind": "bf16"}}
    ((pointer, detail),) = refusals(rows, words({"workers": 1}, compression=compression))
    assert pointer == "/compression"
    assert "give parallelism.shards, at least 1" in detail


def test_without_shards_the_one_worker_has_their_part_and_nothing_travels(rows: Path) -> None:
    document = words({"workers": 1, "update": "workers"}, optimizer={"name": "sgd", "lr": 0.1, "momentum": 0.9})
    plan = planned(rows, document)
    assert not any(key.update == "gradient" for key in plan.keys), "nothing is merged, so nothing is fetched as such"
    run = dry_run_of(plan, None)
    dense = sum(4 * int(np.prod(key.shape)) for key in plan.keys if not key.rows)
    assert run.worker_memory.state_bytes == run.store_memory.state_bytes == dense
    assert run.store_memory.largest_shard_bytes == 0
    assert set(run.step_traffic.model_dump().values()) == {0}
    assert "The worker keeps the values in its own process" in run.text.replace("\n", " ")


def test_names_that_files_or_gradients_need_are_refused(rows: Path) -> None:
    def renamed(old: str, new: str, **parallelism: Any) -> dict[str, Any]:
        document = words({"workers": 1, "shards": 1, **parallelism})
        graph = json.loads(json.dumps(document["graph"]).replace(f'"{old}"', f'"{new}"'))
        return {**document, "graph": graph}

    assert planned(rows, renamed("table", "w/grad")).keys[0].key == "w/grad"
    ((pointer, detail),) = refusals(rows, renamed("table", "w/grad", update="workers"))
    assert pointer == "/graph/parameters/1/name"
    assert "'w/grad' is the merged gradient of 'w'" in detail
    ((pointer, detail),) = refusals(rows, renamed("table", "weft.state/x/w"))
    assert pointer == "/graph/parameters/0/name"


def test_a_batch_larger_than_the_data_is_refused(rows: Path) -> None:
    document = words()
    document["data"]["batch_size"] = 17
    assert refusals(rows, document) == [
        ("/data/batch_size", "a batch of 17 samples is more than the 16 rows to train on: give at most 16"),
    ]


def test_a_dry_run_says_what_each_choice_of_recompute_would_take(rows: Path) -> None:
    document = words({"workers": 2}, recompute="cheap")
    memory = dry_run_of(planned(rows, document), None, spec_of(rows, document)).worker_memory
    assert memory.train is not None
    assert list(memory.recompute) == ["off", "cheap", "segments"]
    assert memory.recompute["cheap"] == memory.train
    assert memory.train.live_bytes <= memory.train.arena_bytes <= memory.recompute["off"].arena_bytes
    assert memory.train_peak_bytes == memory.train.peak_bytes >= memory.train.arena_bytes + memory.parameter_bytes


def test_an_unknown_choice_of_recompute_is_refused(rows: Path) -> None:
    with pytest.raises(ValidationError, match="recompute"):
        spec_of(rows, words(recompute="all"))
