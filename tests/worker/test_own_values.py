"""A job without shards, whose worker keeps the values itself: the same bits as over the store, and what it refuses."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

import rule_documents
from store_cluster import NamedStore
from weft.api.lifecycle import AllocationEvent
from weft.api.store import AverageSpec, CommitSpec
from weft_graph.types import DType
from weft_kernels.kernel import Array
from weft_kernels.rules.lookup import rule_from
from weft_kvstore.description.records import StoreDescription, descriptions
from weft_kvstore.errors import StoreError, StoreLostError, StoreRefusedError
from weft_kvstore.local import LocalStore
from weft_kvstore.serving.shard_server import ShardServer
from weft_worker.own_values import OwnStore
from weft_worker.run import open_store
from weft_worker.task import task_of
from worker_graphs import FEATURES, WIDTH, bags, mlp, normalized
from worker_jobs import BAG_COLUMNS, WAIT_S, Job, Records, programs_of, run_all, run_of, save_bags, save_data

ROWS, STEPS = 120, 9
DONE = (AllocationEvent.DONE, None)
RULES: Mapping[str, Mapping[str, Any]] = {
    "sgd": {"lr": 0.1, "weight_decay": 0.01},
    "momentum": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    "adam": {"lr": 0.01},
    "adagrad": {"lr": 0.1},
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return save_data(tmp_path / "samples.npz", ROWS + 30, "float32")


def job_of(data: Path, rule: str = "momentum", **options: Any) -> Job:
    """Batches of 50 of 120 rows: each third step has 20."""
    chosen: dict[str, Any] = {"batch": 50, "rule": rule, "hyper": RULES[rule], "keep_state": True}
    chosen |= {"steps": STEPS, "train": (0, ROWS)}
    return Job(programs_of(mlp(DType.FLOAT32)), data, **{**chosen, **options})


def described(job: Job) -> StoreDescription:
    return descriptions.from_builtins(job.store_spec().model_dump(mode="json"))


def assert_same_as_over_the_store(job: Job, **settings: Any) -> Records:
    """Final documents and metrics are the same bits; the run's records."""
    store = open_store(task_of(job.allocation(0)))
    assert isinstance(store, OwnStore)
    store.close()
    with NamedStore(described(job)) as store:
        (over,) = run_all(job, store.at_slot)
    (own,) = run_all(job, **settings)
    assert own.last == over.last == DONE
    (document, step, final), (expected, _, _) = own.uploads[-1], over.uploads[-1]
    assert (step, final) == (job.steps, True)
    assert document == expected
    assert [(each.step, each.sums) for each in own.metrics] == [(each.step, each.sums) for each in over.metrics]
    return own


@pytest.mark.parametrize("rule", RULES)
def test_a_worker_of_its_own_gets_the_bits_that_the_store_gets(data, rule):
    assert_same_as_over_the_store(job_of(data, rule, evaluate=(ROWS, ROWS + 30), evaluate_every=2))


def test_over_a_real_shard_the_document_is_the_same(data):
    with ShardServer("tcp://127.0.0.1:0") as server:
        server.start()
        job = job_of(data, shards=(server.endpoint,))
        server.open(described(job), 0)
        (over,) = run_all(job)
    (own,) = run_all(job_of(data))
    assert own.uploads == over.uploads
    assert (own.traffic[-1].sent_bytes, own.traffic[-1].received_bytes) == (0, 0)


@pytest.mark.parametrize(
    "document", [rule_documents.momentum(), rule_documents.normalized()], ids=["momentum", "whole"]
)
def test_a_users_rule_holds_here_too(data, document):
    assert_same_as_over_the_store(replace(job_of(data), rule=document, hyper={}, whole=rule_from(document).whole))


@pytest.mark.parametrize(
    "options",
    [
        {"accumulate": 3},
        {"whole": True, "rule": "lars", "hyper": {"lr": 0.1}},
        {"average": AverageSpec(decay=0.9), "evaluate_average": True, "evaluate": (ROWS, ROWS + 30)},
        {"hyper": {**RULES["momentum"], "lr": {"schedule": "linear", "start": 0.1, "end": 0.0, "steps": 5}}},
    ],
    ids=["accumulate", "a whole key's rule", "averages", "a schedule"],
)
def test_what_a_job_may_ask_for_holds_here_too(data, options):
    assert_same_as_over_the_store(replace(job_of(data), **options))


@pytest.mark.parametrize("settings", [{}, {"arena": False}, {"steps_in_flight": 1}], ids=str)
def test_large_batches_are_read_on_a_thread_beside_the_computing_one_to_the_same_bits(data, settings, monkeypatch):
    job, threads = job_of(data), set[str]()
    told = Records(on_step=lambda _: threads.add(threading.current_thread().name))
    small = run_of(job, 0, told)
    small.start()
    assert small.join(WAIT_S)
    assert threads == {"run-allocation-0"}
    monkeypatch.setattr("weft_worker.run.READ_AHEAD_BYTES", 50 * (FEATURES * 4 + 8) - 1)
    large = run_of(job, 0, told, **settings)
    large.start()
    assert large.join(WAIT_S)
    assert "slot0-compute-0" in threads
    assert told.uploads[0] == told.uploads[1]


def test_running_statistics_are_the_same(data):
    graph = normalized(DType.FLOAT32)
    assert_same_as_over_the_store(Job(programs_of(graph), data, STEPS, (0, ROWS), batch=50, lr=0.05))


@pytest.mark.parametrize("lazy", [True, False], ids=["lazy", "standard"])
@pytest.mark.parametrize("options", [{}, {"accumulate": 3}, {"rule": "momentum", "hyper": RULES["momentum"]}])
def test_tables_are_the_same(tmp_path, options, lazy):
    ids = save_bags(tmp_path / "bags.npz", ROWS + 30)
    chosen = {"evaluate": (ROWS, ROWS + 30), "evaluate_every": 2, "keep_state": True, **options}
    programs = programs_of(bags(DType.FLOAT32, lazy_update=lazy))
    assert_same_as_over_the_store(Job(programs, ids, STEPS, (0, ROWS), batch=50, columns=BAG_COLUMNS, **chosen))


def test_rows_are_read_and_set_like_those_of_the_store(tmp_path):
    """In any order, repeated and negative; what is set for a version comes with it, and not for a passed one."""
    ids = save_bags(tmp_path / "bags.npz", ROWS)
    description = described(Job(programs_of(bags(DType.FLOAT32)), ids, STEPS, (0, ROWS), columns=BAG_COLUMNS))
    asked, ones = np.array([3, -1, 0, 3]), np.ones((4, WIDTH), np.float32)
    with NamedStore(description) as over:
        own = OwnStore(description)
        for store in (over, own):
            store.set("table", 1, 5 * ones, asked).result(WAIT_S)
        first = own.rows("table", asked)
        np.testing.assert_array_equal(first, over.pull("table", 0, asked).result(WAIT_S))
        later = own.pull("table", 1, asked)
        assert not later.done()
        own.update(0, {}, {"table": (asked, ones)})
        over.push("table", 0, ones, asked).result(WAIT_S)
        np.testing.assert_array_equal(later.result(WAIT_S), over.pull("table", 1, asked).result(WAIT_S))
        assert later.result()[0].tolist() == [5.0] * WIDTH
        with pytest.raises(StoreRefusedError):
            own.set("table", 0, ones, asked)
        assert isinstance(own.pull("table", 1, np.array([1 << 40])).exception(WAIT_S), StoreRefusedError)
        own.close()


@pytest.mark.parametrize("options", [{"commit": CommitSpec(clip_norm=0.5)}, {"mode": "async"}, {"slots": 2}])
def test_where_the_store_decides_about_steps_it_keeps_the_values(data, options):
    store = open_store(task_of(job_of(data, **options).allocation(0)))
    with store:
        assert isinstance(store, LocalStore)


def test_values_are_given_and_set_while_it_runs(data):
    """A rate of zero leaves them as they were set."""
    (plain,) = run_all(job_of(data, "sgd", hyper={"lr": 0.0}))
    first = load(plain.uploads[0][0])
    given = {name: value + 1 for name, value in first.items()}
    later = {"w1": first["w1"] + 2}
    job = job_of(data, "sgd", hyper={"lr": 0.0}, given=tuple(given), steps=6)
    records = Records(documents={"given": save(given), "sets/1": save(later)})
    run = run_of(job, 0, records)
    records.on_step = lambda step: run.request_set(1) if step == 2 else None
    run.start()
    assert records.over.wait(WAIT_S)
    assert records.last == DONE
    found = load(records.uploads[-1][0])
    (done,) = records.sets
    if done.error is None:
        np.testing.assert_array_equal(found["w1"], later["w1"])
    np.testing.assert_array_equal(found["w2"], given["w2"])


def test_a_document_of_a_step_in_between_is_the_one_over_the_store(data):
    """Asked for at a boundary of two steps, it is of a whole version, though steps are in flight."""
    job, records = job_of(data), Records()
    run = run_of(job, 0, records)
    records.on_step = lambda step: run.request_upload()
    run.start()
    assert records.over.wait(WAIT_S)
    for document, step, final in records.uploads:
        (shorter,) = run_all(job_of(data, steps=step)) if step else (None,)
        if shorter is not None and not final:
            expected, found = load(shorter.uploads[-1][0]), load(document)
            for name, value in expected.items():
                np.testing.assert_array_equal(found[name], value, err_msg=f"{name} at step {step}")


@pytest.fixture
def store(data):
    with_values = OwnStore(described(job_of(data)))
    yield with_values
    with_values.close()


def zeros(store: OwnStore) -> dict[str, Array]:
    return {key: np.zeros_like(store.value(key)) for key in ("w1", "b1", "w2", "b2")}


def test_a_step_reads_the_arrays_that_the_update_writes(store):
    before, pulled = store.value("w1"), store.pull("w1", 0).result(WAIT_S)
    store.update(0, {**zeros(store), "w1": np.ones_like(before)})
    assert np.shares_memory(store.value("w1"), before)
    assert not np.array_equal(pulled, before)
    assert not np.shares_memory(store.pull("w1", 1).result(WAIT_S), before)


class Asked:
    """First values that come when the test says so."""

    def __init__(self) -> None:
        self.pulls: Queue[tuple[str, Future[Array]]] = Queue()

    def pull(self, key: str, version: int) -> Future[Array]:
        future = Future[Array]()
        self.pulls.put((key, future))
        return future

    def close(self) -> None:
        """The test ends what is asked for."""


@pytest.mark.parametrize("error", [None, StoreLostError("the store was closed")], ids=["late", "closed"])
def test_of_two_threads_that_wait_for_the_first_values_one_takes_them_over(store, error):
    """The other's come once a step has updated them, or not at all."""
    made, asked = store._first, Asked()
    with made.store, ThreadPoolExecutor(2) as pool:
        first = {key: made.pull(key, 0).result(WAIT_S) for key in ("w1", "b1", "w2", "b2")}
        store._first, callers = asked, []
        for _ in range(2):
            caller = pool.submit(store.value, "w1")
            callers.append((caller, [asked.pulls.get(timeout=WAIT_S) for _ in first]))
        for number, (caller, pulls) in enumerate(callers):
            for key, future in pulls:
                if number and error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(first[key].copy())
            caller.result(WAIT_S)
            if number == 0:
                store.update(0, {key: np.ones_like(value) for key, value in first.items()})
                updated = store.pull("w1", 1).result(WAIT_S)
    assert not np.array_equal(updated, first["w1"])
    np.testing.assert_array_equal(store.pull("w1", 1).result(WAIT_S), updated)


@pytest.mark.parametrize("rule", RULES)
def test_an_update_is_the_same_bits_wherever_the_gradients_lie_and_of_some_keys_alone(data, rule):
    """All keys are updated by one call where all have gradients, else one by one."""
    stores = [OwnStore(described(job_of(data, rule))) for _ in range(3)]
    numbers = np.random.default_rng(0)
    for step in range(2):
        given = {key: numbers.standard_normal(array.shape, np.float32) for key, array in zeros(stores[0]).items()}
        for key, gradient in given.items():
            array = stores[0].gradient(key)
            assert array is not None
            array[...] = gradient
        stores[0].update(step, {key: stores[0].gradient(key) for key in given})
        stores[1].update(step, {key: gradient.copy() for key, gradient in given.items()})
        stores[2].update(step, {key: given[key] for key in ("w1", "b2")})
    for key in given:
        np.testing.assert_array_equal(stores[0].value(key), stores[1].value(key))
        moved = np.array_equal(stores[2].value(key), stores[0].value(key))
        assert moved == (key in {"w1", "b2"})
    for each in stores:
        each.close()


def test_a_pull_waits_for_its_version_and_nothing_is_set_for_a_passed_one(store):
    later = store.pull("w1", 1)
    assert not later.done()
    store.update(0, zeros(store))
    assert later.done()
    with pytest.raises(StoreRefusedError):
        store.set("w1", 1, later.result())


def test_closing_ends_what_waits(store):
    later, captured = store.pull("w1", 1), []
    store.capture(3, captured.append)
    store.close()
    assert isinstance(later.exception(WAIT_S), StoreLostError)
    assert [str(one) for one in captured] == ["the store was closed before version 3, at 0"]


def test_a_job_without_tables_says_so(store):
    with pytest.raises(StoreError, match="no tables"):
        store.pull("t", 0, np.zeros(1, np.int64))
