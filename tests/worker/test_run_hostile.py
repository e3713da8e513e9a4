"""Runs over the real store in this process, with data, memory and orders that they were not made for."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from plain_store import PlainCluster
from weft.agent.transfer import Document
from weft.api.lifecycle import AllocationEvent
from weft_data.numpy_source import open_source
from weft_graph.ir import Constant, Graph, Input, Node
from weft_graph.types import BATCH, DType, TensorType
from weft_kvstore.client.store_client import Store
from weft_worker.run import open_store
from weft_worker.run_store import RunStore
from worker_graphs import CLASSES, VOCABULARY, bags, mlp, parameter
from worker_jobs import BAG_COLUMNS, WAIT_S, Job, Records, programs_of, run_all, run_of, save_bags, save_data

ROWS = 100
DONE, FAILED = AllocationEvent.DONE, AllocationEvent.FAILED
OPEN_FILES = Path("/proc/self/fd")
PROGRAMS = programs_of(mlp())


BAD_STEP = 4
"""That reads row 57 first, in batches of 8."""


def job_of(data: Path, steps: int = 8, **options: Any) -> Job:
    return Job(PROGRAMS, data, steps, (0, ROWS), batch=32, **options)


def changed(tmp_path: Path, column: str, value: float) -> Path:
    """Samples with one row that is not like the others."""
    with np.load(save_data(tmp_path / "samples.npz", ROWS)) as samples:
        columns = dict(samples)
    columns[column][57] = value
    np.savez(tmp_path / "changed.npz", **columns)
    return tmp_path / "changed.npz"


@pytest.mark.parametrize("dtype", [DType.FLOAT64, DType.FLOAT32], ids=["in a body", "in a session"])
@pytest.mark.parametrize("label", [99, -1])
def test_a_label_that_is_no_class_fails_the_run_by_node_and_step(tmp_path, label, dtype, monkeypatch):
    monkeypatch.setattr("weft_worker.segments.SESSION_OPERATIONS", 1)
    (records,) = run_all(replace(job_of(changed(tmp_path, "y", label)), batch=8, programs=programs_of(mlp(dtype))))
    event, reason = records.last
    assert event is FAILED
    assert reason == (
        f"label {label} in row 57 of column 'y', read in step {BAD_STEP}, is not one of the {CLASSES} classes "
        f"(0 to {CLASSES - 1}) of SoftmaxCrossEntropyLoss 'cross_entropy': correct the data, "
        f"give the model more outputs, or leave it out with ignore_index={label}"
    )


@pytest.mark.parametrize("bad", [VOCABULARY, -VOCABULARY - 1])
@pytest.mark.parametrize("row_sparse", [True, False], ids=["table", "dense"])
def test_an_id_that_is_no_row_fails_the_run_by_column_row_and_step(tmp_path, row_sparse, bad):
    path = save_bags(tmp_path / "bags.npz", ROWS)
    with np.load(path) as columns:
        ids, labels = columns["ids"], columns["y"]
    ids[57, 1] = labels[::3] = bad  # The labels have the number too, as one that does not count.
    np.savez(path, ids=ids.astype(np.int32), y=labels)
    plain = bags(row_sparse=row_sparse)
    wide = Node("Cast", "widen", ("ids",), ("wide",), {"to": 7})
    look_up, bag, fc, loss, *rest = plain.nodes
    nodes = (wide, replace(look_up, inputs=("table", "wide")), bag, fc, replace(loss, attributes={"ignore_index": bad}))
    narrow = Input("ids", TensorType(DType.INT32, plain.inputs[0].type.shape))
    graph = replace(plain, inputs=(narrow, plain.inputs[1]), nodes=(*nodes, *rest))
    (records,) = run_all(replace(job_of(path), batch=8, programs=programs_of(graph), columns=BAG_COLUMNS))
    event, reason = records.last
    assert event is FAILED
    assert reason == (
        f"index {bad} in row 57 of column 'ids', read in step {BAD_STEP}, is not one of the {VOCABULARY} rows "
        f"({-VOCABULARY} to {VOCABULARY - 1}) of parameter 'table': correct the data"
        f"{', or give the model more rows' if bad > 0 else ''}"
    )


def test_a_label_that_a_loss_picks_by_its_place_is_told_as_an_output_that_there_is_not(tmp_path):
    path = changed(tmp_path, "y", 99)
    with np.load(path) as columns:
        x, y = columns["x"], columns["y"]
    np.savez(path, x=x, y=y[:, None])
    plain = mlp()
    nodes = (
        *plain.nodes[:3],
        Node("GatherElements", "pick", ("scores", "labels"), ("picked",), {"axis": 1}),
        Node("ReduceMean", "mean", ("picked",), ("loss",), {"keepdims": 0}),
    )
    inputs = (plain.inputs[0], Input("labels", TensorType(DType.INT64, (BATCH, 1))))
    graph = replace(plain, inputs=inputs, nodes=nodes, outputs=("loss",))
    job = replace(job_of(path), batch=8, programs=programs_of(graph, {}), columns={"x": "x", "labels": "y"})
    (records,) = run_all(job)
    assert records.last == (
        FAILED,
        f"index 99 in row 57 of column 'y', read in step {BAD_STEP}, is not one of the {CLASSES} outputs "
        f"({-CLASSES} to {CLASSES - 1}) of GatherElements 'pick': correct the data, or give the model more outputs",
    )


def test_a_step_that_fails_ends_the_run_though_the_step_after_it_waits_for_values_that_never_come(tmp_path):
    job = replace(job_of(changed(tmp_path, "y", 99), BAD_STEP + 1, slots=2), batch=8)
    first = {key.key: np.zeros(key.type.static_shape) for key in PROGRAMS.keys}
    cluster, over = PlainCluster(first, job.slots, job.lr), threading.Event()
    records = [Records(over=over) for _ in range(job.slots)]
    runs = [run_of(job, slot, each, lambda _, slot=slot: cluster.store(slot)) for slot, each in enumerate(records)]
    for run in runs:
        run.start()
    assert over.wait(WAIT_S)
    for run in runs:
        run.stop()
    assert any(f"read in step {BAD_STEP}" in str(reason) for each in records for _, reason in each.events)


def test_evaluation_rows_that_are_not_finite_or_no_class_are_told_by_column_row_and_step(tmp_path):
    held_out = {"train": (0, 50), "evaluate": (50, ROWS), "evaluate_every": 3}
    (records,) = run_all(replace(job_of(changed(tmp_path, "x", np.inf)), **held_out))
    assert records.last == (DONE, None)
    told = [each for each in records.metrics if each.split == "evaluate"]
    assert [(each.step, each.not_finite["loss"]) for each in told] == [(3, 3), (6, 6), (8, 8)]
    assert {each.bad_data for each in told} == {"row 57 of column 'x'"}
    assert not any(each.bad_data for each in records.metrics if each.split == "train")
    (records,) = run_all(replace(job_of(changed(tmp_path, "y", 99)), **held_out))
    assert "label 99 in row 57 of column 'y', read in evaluation batch 0 after step 3, is not" in records.last[1]


def test_a_number_that_is_none_is_trained_on_and_told_with_its_row_and_the_first_step(tmp_path):
    (records,) = run_all(job_of(changed(tmp_path, "x", np.nan)))
    assert records.last == (DONE, None)
    assert not records.logs
    assert np.isnan(records.metrics[-1].sums["loss"])
    first, *later = (each for each in records.metrics if each.not_finite)
    assert first.bad_data == "row 57 of column 'x'"
    assert 0 < first.not_finite["loss"] <= first.step
    assert all(each.not_finite["loss"] > first.step for each in later)


def test_data_that_changes_under_a_run_fails_it_by_the_files_name(tmp_path, monkeypatch):
    monkeypatch.setattr("weft_data.numpy_source.SETTLE_S", 0.0)
    data = save_data(tmp_path / "samples.npz", ROWS)
    records = Records()
    records.on_step = lambda step: os.truncate(data, 100) if step == 5 else None
    run_of(job_of(data, steps=10_000_000), 0, records).start()
    assert records.over.wait(WAIT_S)
    event, reason = records.last
    assert event is FAILED
    assert "samples.npz' was changed while it was being read" in reason


@pytest.mark.parametrize(
    "change", [lambda path: os.utime(path, (0, 0)), lambda path: path.write_bytes(path.read_bytes())]
)
def test_data_that_is_touched_or_written_anew_as_it_was_is_trained_on_and_that_is_told(tmp_path, change):
    data = save_data(tmp_path / "samples.npz", ROWS)
    (undisturbed,) = run_all(job_of(data))
    records = Records()
    records.on_step = lambda step: change(data) if step == 2 else None
    run_of(job_of(data), 0, records).start()
    assert records.over.wait(WAIT_S)
    assert records.last == (DONE, None)
    assert records.metrics == undisturbed.metrics
    assert any("it holds what it held" in line.message for line in records.logs)


def test_a_run_that_begins_again_on_other_data_fails_and_says_what_to_do(tmp_path):
    data = save_data(tmp_path / "samples.npz", ROWS)
    source = open_source("numpy", str(data), columns=["x", "y"])
    content = source.describe().content
    source.close()
    for rows, ends in ((ROWS, DONE), (ROWS + 1, FAILED)):
        save_data(data, rows)
        records = Records()
        run_of(job_of(data, content=content), 0, records).start()
        assert records.over.wait(WAIT_S)
        assert records.last[0] is ends
    assert "samples.npz' holds other data than when the job was submitted" in records.last[1]
    assert "`weft resume`" in records.last[1]


@pytest.mark.parametrize("change", [os.unlink, lambda path: save_data(path.with_name("new.npz"), 7).rename(path)])
def test_a_file_that_another_takes_the_place_of_is_read_to_the_end(tmp_path, change):
    """What was opened is what is trained on."""
    data = save_data(tmp_path / "samples.npz", ROWS)
    (undisturbed,) = run_all(job_of(data))
    records = Records()
    records.on_step = lambda step: change(data) if step == 2 else None
    run_of(job_of(data), 0, records).start()
    assert records.over.wait(WAIT_S)
    assert records.last == (DONE, None)
    trained, expected = (load(told.uploads[0][0]) for told in (records, undisturbed))
    for key, value in expected.items():
        np.testing.assert_array_equal(trained[key], value)


def test_a_value_that_no_memory_holds_fails_the_run_by_node_and_size(tmp_path):
    """All sums of two of 2**23 numbers: 512 TiB, more than a process can address."""
    rows, width = 1 << 12, 1 << 11
    graph = Graph(
        name="every pair",
        inputs=(Input("x", TensorType(DType.FLOAT64, (BATCH, width))),),
        parameters=(parameter("w", (1,), DType.FLOAT64),),
        nodes=(
            Node("Mul", "scaled", ("x", "w"), ("h",)),
            Node("Unsqueeze", "left", ("h", "last"), ("a",)),
            Node("Unsqueeze", "right", ("h", "first"), ("b",)),
            Node("Add", "pairs", ("a", "b"), ("s",)),
            Node("ReduceMean", "mean", ("s",), ("loss",), {"keepdims": 0}),
        ),
        outputs=("loss",),
        constants=(Constant("last", np.array([2, 3])), Constant("first", np.array([0, 1]))),
    )
    np.savez_compressed(tmp_path / "wide.npz", x=np.zeros((rows, width), np.uint8))
    job = Job(programs_of(graph, {}), tmp_path / "wide.npz", 3, (0, rows), batch=rows)
    allocation = job.allocation(0)
    records = Records()
    run = run_of(job, 0, records)
    data = allocation.data.model_copy(update={"columns": {"x": "x"}})
    run._allocation = allocation.model_copy(update={"data": data})
    run.start()
    assert records.over.wait(WAIT_S)
    event, reason = records.last
    assert event is FAILED
    assert reason.startswith("out of memory: ")
    assert "step 1: its values need 562950087639040 bytes at once, which cannot be had (Unable to allocate" in reason
    assert "the largest are 's' of 562949953421312 bytes, " in reason


def watched(store: Store | RunStore, moment: Callable[[], None]) -> Store | RunStore:
    """The store, which says `moment` before and after each call from now on."""

    def between(call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        moment()
        found = call(*given, **named)
        moment()
        return found

    for name in ("submit", "push", "pull", "barrier", "value", "update"):
        if hasattr(store, name):
            setattr(store, name, partial(between, getattr(store, name)))
    return store


class WatchedRecords(Records):
    """Says `moment` whenever the run tells something."""

    def __init__(self, moment: Callable[[], None]) -> None:
        super().__init__()
        self.moment = moment

    def report(self, **facts: Any) -> None:
        self.moment()
        super().report(**facts)

    def upload(self, document: Document, step: int, final: bool) -> None:
        self.moment()
        super().upload(document, step, final)
        self.moment()

    def reached(self, event: AllocationEvent, reason: str | None, *, lost: bool = False) -> None:
        self.moment()
        super().reached(event, reason, lost=lost)


def stopped_at(job: Job, place: int, **settings: object) -> tuple[WatchedRecords, bool]:
    """What a run told that was stopped at the moment `place`, and whether it came so far."""
    lock, seen = threading.Lock(), [0]

    def moment() -> None:
        with lock:
            seen[0] += 1
            now = seen[0] == place
        if now:
            run.stop()

    records = WatchedRecords(moment)
    run = run_of(job, 0, records, lambda task: watched(open_store(task), moment), **settings)
    run.start()
    assert records.over.wait(WAIT_S), f"stopped at moment {place}, the run has not ended"
    assert run.join(WAIT_S)
    return records, seen[0] >= place


@pytest.mark.parametrize("serial", [False, True])
def test_a_run_can_be_stopped_at_every_moment_and_says_nothing_of_it(tmp_path, serial):
    job = Job(PROGRAMS, save_data(tmp_path / "samples.npz", ROWS + 10), 2, (0, ROWS), 1, 64, (ROWS, ROWS + 10))
    before = set(threading.enumerate())
    place, came = 0, True
    while came:
        place += 1
        records, came = stopped_at(job, place, serial=serial)
        assert [(event, reason) for event, reason in records.events if event is FAILED] == [], place
        assert set(threading.enumerate()) <= before, place
    assert place > 2 * 2 * len(PROGRAMS.keys)
    assert records.last == (DONE, None)


@pytest.mark.skipif(not OPEN_FILES.is_dir(), reason="open files are counted in /proc")
def test_one_job_after_the_other_leaves_no_thread_and_no_file_open(tmp_path):
    data = save_data(tmp_path / "samples.npz", ROWS)
    run_all(job_of(data))
    threads, files = set(threading.enumerate()), len(list(OPEN_FILES.iterdir()))
    for _ in range(20):
        (records,) = run_all(job_of(data))
        assert records.last == (DONE, None)
    assert set(threading.enumerate()) <= threads
    assert len(list(OPEN_FILES.iterdir())) <= files
