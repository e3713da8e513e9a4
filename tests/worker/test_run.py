"""A slot's run from its allocation to its last report, over a plain store in this process."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from plain_store import PlainCluster
from weft.agent.reporter import UploadError
from weft.api.lifecycle import AllocationEvent
from weft_kernels.initializers import first_values as first_values_of
from weft_kernels.kernel import kernel_of, kernels
from weft_kvstore.errors import StoreLostError
from weft_kvstore.settings import LinkSettings
from weft_worker.run import open_store
from weft_worker.task import task_of
from worker_graphs import CLASSES, FEATURES, HIDDEN, mlp, normalized
from worker_jobs import WAIT_S, Job, Records, programs_of, run_all, run_of, save_data

ROWS, HELD_OUT = 100, 30
READY, RUNNING, DONE, FAILED = (AllocationEvent(name) for name in ("ready", "running", "done", "failed"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return save_data(tmp_path / "samples.npz", ROWS + HELD_OUT)


@pytest.fixture
def job(data: Path) -> Job:
    return Job(programs_of(mlp()), data, 12, (0, ROWS), slots=3, batch=32, evaluate=(ROWS, ROWS + HELD_OUT))


def first_values() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(5)
    shapes = {"w1": (FEATURES, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, CLASSES), "b2": (CLASSES,)}
    return {key: draw.uniform(-0.5, 0.5, shape) for key, shape in shapes.items()}


def cluster_of(job: Job) -> PlainCluster:
    return PlainCluster(first_values(), job.slots, job.lr)


def plain_loss(values: dict[str, np.ndarray], x: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """(mean cross-entropy, share of right answers) of the net, in NumPy."""
    scores = np.maximum(x @ values["w1"] + values["b1"], 0) @ values["w2"] + values["b2"]
    scores = scores - scores.max(axis=1, keepdims=True)
    chosen = scores[np.arange(len(labels)), labels] - np.log(np.exp(scores).sum(axis=1))
    return -float(chosen.mean()), float((scores.argmax(axis=1) == labels).mean())


def threads_beside(before: set[threading.Thread]) -> list[str]:
    return [thread.name for thread in set(threading.enumerate()) - before]


def test_every_slot_says_ready_running_done_and_every_step(job):
    for records in run_all(job, cluster_of(job).store):
        assert records.events == [(READY, None), (RUNNING, None), (DONE, None)]
        assert records.steps == list(range(1, 13))
        assert records.logs == []


def test_tf32_on_a_cpu_is_said_to_have_no_effect_by_one_slot(job):
    first, *others = run_all(replace(job, allow_tf32=True), cluster_of(job).store)
    assert [line.level for line in first.logs] == ["warning"]
    assert "allow_tf32 has no effect on device 'cpu'" in first.logs[0].message
    assert all(records.logs == [] for records in others)


def test_the_keeper_alone_uploads_and_says_which_job_and_step(job):
    keeper, *others = run_all(job, cluster_of(job).store)
    ((document, step, final),) = keeper.uploads
    assert (step, final) == (12, True)
    assert sorted(load(document)) == ["b1", "b2", "w1", "w2"]
    assert b'"job":"job-1"' in document.replace(b" ", b"")[:400]
    assert all(records.uploads == [] for records in others)


def test_training_metrics_are_sums_over_all_samples_reported_at_the_same_steps(job):
    everything = run_all(job, cluster_of(job).store)
    taken = [[report for report in records.metrics if report.split == "train"] for records in everything]
    assert [[report.step for report in reports] for reports in taken] == [[4, 8, 10, 12]] * 3
    assert [sum(reports[place].samples for reports in taken) for place in range(4)] == [100, 100, 64, 36]


def test_the_first_steps_loss_is_that_of_the_first_values(job):
    one = Job(job.programs, job.data, 1, job.train, batch=ROWS)
    (records,) = run_all(one, cluster_of(one).store)
    (report,) = records.metrics
    with np.load(job.data) as columns:
        loss, accuracy = plain_loss(first_values(), columns["x"][:ROWS], columns["y"][:ROWS])
    assert report.samples == ROWS
    assert report.sums["loss"] == pytest.approx(loss * ROWS)
    assert report.sums["accuracy"] == pytest.approx(accuracy * ROWS)


def test_evaluation_sees_the_values_after_the_steps_that_it_follows(job):
    """Shards would have passed them, and the plain store would refuse, had any slot gone on before its evaluation."""
    everything = run_all(job, cluster_of(job).store)
    taken = [[report for report in records.metrics if report.split == "evaluate"] for records in everything]
    assert [[report.step for report in reports] for reports in taken] == [[4, 8, 12]] * 3
    assert sum(reports[-1].samples for reports in taken) == HELD_OUT
    with np.load(job.data) as columns:
        values = load(everything[0].uploads[0][0])
        loss, accuracy = plain_loss(values, columns["x"][ROWS:], columns["y"][ROWS:])
    for name, expected in (("loss", loss), ("accuracy", accuracy)):
        assert sum(reports[-1].sums[name] for reports in taken) == pytest.approx(expected * HELD_OUT)


def test_a_slot_without_evaluation_rows_reports_zero_samples(job):
    few = Job(job.programs, job.data, 4, job.train, slots=3, batch=32, evaluate=(ROWS, ROWS + 2))
    everything = run_all(few, cluster_of(few).store)
    last = [records.metrics[-1] for records in everything]
    assert [(report.split, report.samples) for report in last] == [("evaluate", 1), ("evaluate", 1), ("evaluate", 0)]
    assert last[2].sums == {"loss": 0.0, "accuracy": 0.0}


def test_an_upload_on_request_has_the_values_of_one_step(job):
    cluster = cluster_of(job)
    records = Records()
    one = Job(job.programs, job.data, 40, job.train, batch=32)
    run = run_of(one, 0, records, lambda task: PlainCluster(first_values(), 1, one.lr).store(0))
    records.on_step = lambda step: run.request_upload() if step == 5 else None
    run.start()
    assert records.over.wait(WAIT_S)
    (document, step, final), last = records.uploads
    assert not final
    assert 5 <= step < 40
    assert last[1:] == (40, True)
    shorter = Job(job.programs, job.data, step, job.train, batch=32)
    (again,) = run_all(shorter, lambda slot: PlainCluster(first_values(), 1, one.lr).store(0))
    for key, value in load(again.uploads[0][0]).items():
        np.testing.assert_array_equal(load(document)[key], value)
    assert cluster.keys["w1"].version == 0


def test_an_upload_on_request_that_is_not_taken_ends_nothing(job):
    def refuse() -> None:
        if not records.logs:
            raise UploadError("the server is away")

    records = Records(on_upload=refuse)
    one = Job(job.programs, job.data, 40, job.train, batch=32)
    run = run_of(one, 0, records, lambda task: PlainCluster(first_values(), 1, one.lr).store(0))
    records.on_step = lambda step: run.request_upload() if step == 5 else None
    run.start()
    assert records.over.wait(WAIT_S)
    assert records.last == (DONE, None)
    assert "the server is away" in records.logs[0].message


def test_a_final_upload_that_is_not_taken_fails_the_run(job):
    def refuse() -> None:
        raise UploadError("the disk is full")

    records = Records(on_upload=refuse)
    one = Job(job.programs, job.data, 2, job.train, batch=32)
    run_of(one, 0, records, lambda task: cluster_of(one).store(0)).start()
    assert records.over.wait(WAIT_S)
    event, reason = records.last
    assert event is FAILED
    assert "the disk is full" in reason


@pytest.mark.parametrize("serial", [False, True])
def test_a_failing_kernels_error_names_slot_operator_step_and_shapes(job, monkeypatch, serial):
    def broken(context, inputs, attributes):
        if context.step == 3:
            raise FloatingPointError("underflow")
        return intact(context, inputs, attributes)

    intact = kernels()["", "Relu"]
    monkeypatch.setattr("weft_kernels.operators.activations.relu", broken)
    monkeypatch.setattr(
        "weft_worker.bind.kernel_of", lambda node: broken if node.op_type == "Relu" else kernel_of(node)
    )
    before = set(threading.enumerate())
    one = Job(job.programs, job.data, 8, job.train, batch=32)
    (records,) = run_all(one, cluster_of(one).store, serial=serial)
    event, reason = records.last
    assert event is FAILED
    for part in ("Relu 'relu' of step 4", "FloatingPointError: underflow", "inputs float64[4, 16]"):
        assert part in reason
    assert threads_beside(before) == []


def test_a_store_error_names_the_key_and_the_step(job):
    one = Job(job.programs, job.data, 8, job.train, batch=32)
    store = cluster_of(one).store(0)
    intact = store.push

    def push(key, step, gradient):
        future = intact(key, step, gradient)
        if (key, step) == ("w2", 2):
            future = type(future)()
            future.set_exception(StoreLostError("shard 1 is silent"))
        return future

    store.push = push
    (records,) = run_all(one, lambda slot: store)
    event, reason = records.last
    assert event is FAILED
    assert "Send 'w2' of step 3 failed: StoreLostError: shard 1 is silent" in reason


@pytest.mark.parametrize("serial", [False, True])
def test_a_run_that_waits_for_another_slot_is_stopped_at_once_and_leaves_no_thread(job, serial):
    """Slot 1 never starts, so slot 0 waits in its second step for the first one's update."""
    before = set(threading.enumerate())
    two = Job(job.programs, job.data, 12, job.train, slots=2, batch=32)
    cluster = cluster_of(two)
    waiting = threading.Event()
    store = cluster.store(0)
    intact = store.pull

    def pull(key, version, *, settled=False):
        if version > 0:
            waiting.set()
        return intact(key, version)

    store.pull = pull
    records = Records()
    run = run_of(two, 0, records, lambda task: store, serial=serial)
    run.start()
    assert waiting.wait(WAIT_S)
    run.stop()
    assert records.over.wait(WAIT_S)
    assert run.join(WAIT_S)
    assert records.events == [(READY, None), (RUNNING, None)]
    assert threads_beside(before) == []


def test_a_run_that_is_stopped_before_it_starts_ends_without_a_word(job):
    records = Records()
    run = run_of(job, 0, records, lambda task: cluster_of(job).store(0))
    run.stop()
    run.start()
    assert records.over.wait(WAIT_S)
    assert DONE not in [event for event, _ in records.events]


def test_stopping_only_says_so_and_a_store_that_does_not_close_holds_up_the_run_alone(job):
    one = Job(job.programs, job.data, 10_000_000, job.train, batch=32)
    store, released, closing = cluster_of(one).store(0), threading.Event(), threading.Event()
    intact = store.close

    def close() -> None:
        closing.set()
        assert released.wait(WAIT_S)
        intact()

    store.close = close
    records = Records()
    run = run_of(one, 0, records, lambda task: store)
    run.start()
    run.stop()
    assert closing.wait(WAIT_S)
    assert not records.over.is_set()
    released.set()
    assert records.over.wait(WAIT_S)
    assert run.join(WAIT_S)


def test_a_store_that_does_not_close_in_time_fails_the_run_by_name(job, monkeypatch):
    monkeypatch.setattr("weft_worker.run.CLOSE_TIMEOUT_S", 0.01)
    one = Job(job.programs, job.data, 2, job.train, batch=32)
    store, released = cluster_of(one).store(0), threading.Event()
    store.close = lambda: released.wait(WAIT_S)
    try:
        (records,) = run_all(one, lambda slot: store)
    finally:
        released.set()
    assert records.last == (FAILED, "the store was not closed within 0.01 s")


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"x": "x"}, "input 'labels' has no column"),
        ({"x": "x", "labels": "answers"}, "no column 'answers'"),
        ({"x": "y", "labels": "y"}, "input 'x' is float64[batch, 6], column 'y' is int64 with rows of shape []"),
        ({"x": "x", "labels": "x"}, "input 'labels' is int64[batch], column 'x' is float64 with rows of shape [6]"),
    ],
)
def test_data_that_does_not_fit_fails_the_run_before_it_is_ready(job, columns, says):
    allocation = job.allocation(0)
    allocation = allocation.model_copy(update={"data": allocation.data.model_copy(update={"columns": columns})})
    records = Records()
    run = run_of(job, 0, records, lambda task: cluster_of(job).store(0))
    run._allocation = allocation
    run.start()
    assert records.over.wait(WAIT_S)
    ((event, reason),) = records.events
    assert event is FAILED
    assert says in reason


def test_rows_that_the_source_does_not_have_fail_the_run(job):
    beyond = Job(job.programs, job.data, 4, (0, 5000), batch=32)
    (records,) = run_all(beyond, cluster_of(beyond).store)
    event, reason = records.last
    assert event is FAILED
    assert "data.train ends at row 5000" in reason


def test_programs_that_cannot_be_read_fail_the_run_with_the_place(job):
    records = Records()
    run = run_of(job, 0, records, lambda task: cluster_of(job).store(0))
    run._allocation = job.allocation(0).model_copy(update={"programs": {"format_version": 99}})
    run.start()
    assert records.over.wait(WAIT_S)
    event, reason = records.last
    assert event is FAILED
    assert "programs cannot be read" in reason


def test_a_float32_column_feeds_a_float64_input(job, tmp_path):
    narrow = Job(job.programs, save_data(tmp_path / "narrow.npz", ROWS, "float32"), 4, (0, ROWS), batch=32)
    (records,) = run_all(narrow, cluster_of(narrow).store)
    assert records.last == (DONE, None)


@pytest.mark.parametrize("awaited", [(0,), ()], ids=["the store waits for it", "nobody contributes"])
def test_a_key_that_is_not_trained_keeps_its_first_value(data, awaited):
    graph = mlp()
    frozen = replace(graph, parameters=tuple(replace(p, trainable=p.name != "w1") for p in graph.parameters))
    job = Job(programs_of(frozen), data, 8, (0, ROWS), batch=32, evaluate=(ROWS, ROWS + HELD_OUT))
    allocation = job.allocation(0)
    keys = [k.model_copy(update={"slots": list(awaited)}) if k.key == "w1" else k for k in allocation.store.keys]
    allocation = allocation.model_copy(update={"store": allocation.store.model_copy(update={"keys": keys})})
    records = Records()
    run = run_of(job, 0, records)
    run._allocation = allocation
    run.start()
    assert records.over.wait(WAIT_S)
    assert records.last == (DONE, None)
    values = load(records.uploads[0][0])
    untrained = {
        p.name: first_values_of(p.initializer, seed=job.seed, key=p.name, start=0, stop=p.type.size, dtype="float64")
        for p in frozen.parameters
    }
    np.testing.assert_array_equal(values["w1"].ravel(), untrained["w1"])
    assert (values["w2"].ravel() != untrained["w2"]).any()


def test_normalization_evaluates_by_the_running_statistics(data):
    graph = normalized()
    job = Job(programs_of(graph), data, 6, (0, ROWS), batch=32, slots=2, evaluate=(ROWS, ROWS + HELD_OUT))
    first = {
        **first_values(),
        "scale": np.ones(HIDDEN),
        "shift": np.zeros(HIDDEN),
        "mean": np.zeros(HIDDEN),
        "var": np.ones(HIDDEN),
    }
    cluster = PlainCluster(first, 2, job.lr, ["mean", "var"])
    everything = run_all(job, cluster.store)
    values = load(everything[0].uploads[0][0])
    with np.load(data) as columns:
        hidden = columns["x"][ROWS:] @ values["w1"] + values["b1"]
        normal = (hidden - values["mean"]) / np.sqrt(values["var"] + 1e-5) * values["scale"] + values["shift"]
        scores = np.maximum(normal, 0) @ values["w2"] + values["b2"]
        scores -= scores.max(axis=1, keepdims=True)
        chosen = scores[np.arange(HELD_OUT), columns["y"][ROWS:]] - np.log(np.exp(scores).sum(axis=1))
    told = sum(records.metrics[-1].sums["loss"] for records in everything)
    assert told == pytest.approx(-float(chosen.sum()))


def test_a_worker_waits_for_a_silent_shard_as_long_as_the_server_says_and_for_a_slot_behind_it_longer(job, monkeypatch):
    links: list[LinkSettings] = []
    monkeypatch.setattr("weft_worker.run.StoreClient", lambda *_, settings, **__: links.append(settings))
    allocation = replace(job, shards=("tcp://127.0.0.1:1",)).allocation(0).model_copy(update={"lost_after_s": 300.0})
    open_store(task_of(allocation))
    assert links[0].silence_s == 300.0
    assert links[0].request_timeout_s >= 360.0
