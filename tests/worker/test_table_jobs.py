"""Jobs with a table: rows are fetched and pushed, the table never exists on a worker, and results are as ever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load

from plain_store import PlainCluster, PlainStore
from store_cluster import NamedStore
from weft.api.lifecycle import AllocationEvent
from weft_data.schedule import BatchPlan
from weft_graph.ir import Graph
from weft_kernels.kernel import Array
from weft_kvstore.description.records import StoreDescription, descriptions
from weft_kvstore.errors import StoreLostError
from weft_kvstore.serving.shard_server import ShardServer
from weft_worker.pace import waiting_ids
from worker_graphs import BAG, VOCABULARY, WIDTH, bags
from worker_jobs import BAG_COLUMNS, WAIT_S, Job, programs_of, run_all, save_bags

ROWS, HELD_OUT, STEPS = 200, 50, 10
DONE, FAILED = AllocationEvent.DONE, AllocationEvent.FAILED


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return save_bags(tmp_path / "bags.npz", ROWS + HELD_OUT)


def job_of(graph: Graph, data: Path, **options: Any) -> Job:
    return Job(programs_of(graph), data, STEPS, (0, ROWS), columns=BAG_COLUMNS, **options)


def first_values(graph: Graph) -> dict[str, Array]:
    draw = np.random.default_rng(5)
    return {each.name: draw.uniform(-0.5, 0.5, each.type.static_shape) for each in graph.parameters}


def trained(job: Job, graph: Graph, **settings: Any) -> dict[str, Array]:
    """The final parameters of the job over a plain store."""
    everything = run_all(job, PlainCluster(first_values(graph), job.slots, job.lr).store, **settings)
    for records in everything:
        assert records.last == (DONE, None)
    ((document, step, final),) = everything[job.keeper].uploads
    assert (step, final) == (STEPS, True)
    return load(document)


def plainly_trained(job: Job, graph: Graph) -> dict[str, Array]:
    """Descent on the mean cross-entropy of bags, in NumPy, with a dense table."""
    values = first_values(graph)
    with np.load(job.data) as columns:
        ids, labels = columns["ids"], columns["y"]
    for step in range(STEPS):
        _, rows = BatchPlan(*job.train, job.batch, job.seed, True).at(step)
        bag, right = ids[rows], labels[rows]
        hidden = values["table"][bag].mean(axis=1)
        scores = hidden @ values["w"] + values["b"]
        share = np.exp(scores - scores.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        share[np.arange(len(rows)), right] -= 1
        share /= len(rows)
        table = np.zeros_like(values["table"])
        np.add.at(table, bag, (share @ values["w"].T / BAG)[:, None, :])
        gradients = {"table": table, "w": hidden.T @ share, "b": share.sum(axis=0)}
        values = {key: value - job.lr * gradients[key] for key, value in values.items()}
    return values


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_any_number_of_workers_trains_as_the_plain_formula_does(data, slots):
    """2 x 32 and 3 x 21 or 22 equal 1 x 64, to 1e-9 over 10 steps in float64, with uneven ends of passes."""
    graph = bags()
    job = job_of(graph, data, slots=slots, lr=1.0)
    found, expected = trained(job, graph), plainly_trained(job, graph)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=0, atol=1e-9, err_msg=key)
        assert not np.array_equal(value, first_values(graph)[key]), f"{key} was not trained at all"


@pytest.mark.parametrize("dense", [True, False], ids=["with a dense key", "with the table alone"])
@pytest.mark.parametrize("batch", [66, 2])
def test_a_slot_without_samples_keeps_pace_by_a_key_or_by_one_row(data, batch, dense):
    """Batches of 2 leave the third slot without any sample, those of 66 at the end of each pass."""
    graph = bags(dense=dense)
    alone = trained(job_of(graph, data, batch=batch), graph)
    together = trained(job_of(graph, data, batch=batch, slots=3), graph)
    for key, value in alone.items():
        np.testing.assert_allclose(together[key], value, rtol=0, atol=1e-9, err_msg=key)


@pytest.mark.parametrize("settings", [{"serial": True}, {"compute_threads": 4}, {"steps_in_flight": 1}], ids=str)
def test_how_a_run_uses_its_machine_changes_no_bit(data, settings):
    graph = bags()
    usual = trained(job_of(graph, data, slots=3), graph)
    other = trained(job_of(graph, data, slots=3), graph, **settings)
    for key, value in usual.items():
        np.testing.assert_array_equal(other[key], value, err_msg=key)


class CountingStore(PlainStore):
    """Notes which rows are pulled and pushed, by step, and keys that are pulled whole."""

    def __init__(self, cluster: PlainCluster, slot: int) -> None:
        super().__init__(cluster, slot)
        self.pulled: list[tuple[int, Array]] = []
        self.pushed: list[tuple[int, Array]] = []
        self.whole: set[str] = set()

    def push(self, key, step, gradient, ids=None):
        if ids is not None:
            self.pushed.append((step, ids[ids >= 0]))
        return super().push(key, step, gradient, ids)

    def pull(self, key, version, ids=None, *, settled=False):
        if ids is None:
            self.whole.add(key)
        else:
            self.pulled.append((version, ids[ids >= 0]))
        return super().pull(key, version, ids, settled=settled)


def test_a_step_of_padding_alone_waits_for_its_version_too(data):
    """Else a slot without a row to read would run ahead of the others, further than the store lets it."""
    padding = np.full(3, -1)
    description = described(job_of(bags(), data))
    shape = next(each.shape for each in description.keys if each.key == "table")
    with NamedStore(description) as store:
        assert not store.pull("table", 1, padding).result(WAIT_S).any()
        waiting = store.pull("table", 1, waiting_ids(padding))
        assert not waiting.done()
        store.push("table", 0, np.zeros((0, *shape[1:])), np.zeros(0, np.int64))
        waiting.result(WAIT_S)
    some = np.array([4, -1])
    assert waiting_ids(some) is some
    assert waiting_ids(np.zeros(0, np.int64)).size == 0


def test_a_step_moves_each_row_that_it_reads_once_and_no_other(data):
    graph = bags()
    job = job_of(graph, data, evaluate=(ROWS, ROWS + HELD_OUT), keeper=1)
    store = CountingStore(PlainCluster(first_values(graph), 1, job.lr), 0)
    (records,) = run_all(job, lambda slot: store)
    assert records.last == (DONE, None)
    assert store.whole == {"w", "b"}
    with np.load(data) as columns:
        ids = columns["ids"]
    batches = BatchPlan(*job.train, job.batch, job.seed, True)
    read = [np.unique(ids[batches.at(step)[1]]) for step in range(STEPS)]
    assert any(len(rows) < VOCABULARY for rows in read), "a step reads only some of the table"
    pulls = list(store.pulled)
    for step, rows in enumerate(read):
        # The newest of a version: an evaluation of it comes before the step that reads it.
        place = max(place for place, (version, _) in enumerate(pulls) if version == step)
        np.testing.assert_array_equal(pulls.pop(place)[1], rows)
    for _, rows in pulls:
        np.testing.assert_array_equal(rows, np.unique(ids[ROWS:]), "what is left is of evaluations")
    assert {version for version, _ in pulls} == {4, 8, 10}
    assert [step for step, _ in store.pushed] == list(range(STEPS))
    for (_, pushed), rows in zip(store.pushed, read, strict=True):
        np.testing.assert_array_equal(pushed, rows)


def test_evaluation_fetches_rows_of_the_version_that_it_follows(data):
    graph = bags()
    job = job_of(graph, data, slots=3, evaluate=(ROWS, ROWS + HELD_OUT))
    everything = run_all(job, PlainCluster(first_values(graph), 3, job.lr).store)
    values = load(everything[0].uploads[0][0])
    with np.load(data) as columns:
        ids, labels = columns["ids"][ROWS:], columns["y"][ROWS:]
    scores = values["table"][ids].mean(axis=1) @ values["w"] + values["b"]
    chosen = scores[np.arange(HELD_OUT), labels] - np.log(np.exp(scores).sum(axis=1))
    last = [records.metrics[-1] for records in everything]
    assert [(report.split, report.step) for report in last] == [("evaluate", STEPS)] * 3
    assert sum(report.sums["loss"] for report in last) == pytest.approx(-float(chosen.sum()))


@pytest.mark.parametrize("serial", [False, True])
@pytest.mark.parametrize(("call", "names"), [("pull", "FetchRows"), ("push", "SendRows")])
def test_a_failure_names_operator_table_and_step(data, call, names, serial):
    graph = bags()
    store = PlainCluster(first_values(graph), 1, 0.1).store(0)
    intact = getattr(store, call)

    def failing(key, *arguments, **named):
        future = intact(key, *arguments, **named)
        if key == "table" and 3 in [argument for argument in arguments if isinstance(argument, int)]:
            future = type(future)()
            future.set_exception(StoreLostError("shard 1 is silent"))
        return future

    setattr(store, call, failing)
    (records,) = run_all(job_of(graph, data), lambda slot: store, serial=serial)
    event, reason = records.last
    assert event is FAILED
    assert f"{names} 'table' of step 4 failed: StoreLostError: shard 1 is silent" in reason


def test_a_frozen_table_is_fetched_by_rows_and_keeps_its_values(data):
    """Over the store of one process, which has no value of it but the first."""
    job = job_of(bags(trained=False), data, evaluate=(ROWS, ROWS + HELD_OUT))
    with NamedStore(described(job)) as store:
        first = store.pull("table", 0, np.arange(VOCABULARY)).result(WAIT_S)
    (records,) = run_all(job)
    assert records.last == (DONE, None)
    np.testing.assert_array_equal(load(records.uploads[0][0])["table"], first)


def described(job: Job) -> StoreDescription:
    description = descriptions.from_builtins(job.store_spec().model_dump(mode="json"))
    return msgspec.structs.replace(description, shards=job.shards or ("",))


@pytest.fixture
def shards() -> Iterator[list[ShardServer]]:
    with ExitStack() as stack:
        servers = [stack.enter_context(ShardServer("tcp://127.0.0.1:0")) for _ in range(2)]
        for server in servers:
            server.start()
        yield servers


def test_three_workers_and_two_shards_equal_the_plain_formula_and_count_few_bytes(data, shards):
    """The store makes the first values itself; the plain formula starts from them."""
    graph = bags()
    job = job_of(graph, data, slots=3, shards=tuple(s.endpoint for s in shards), evaluate=(ROWS, ROWS + HELD_OUT))
    description = described(job)
    for number, server in enumerate(shards):
        server.open(description, number)
    everything = run_all(job)
    assert [records.last for records in everything] == [(DONE, None)] * 3
    with NamedStore(description) as store:
        first = {key: store.pull(key, 0).result(WAIT_S) for key in ("w", "b")}
        first["table"] = store.pull("table", 0, np.arange(VOCABULARY)).result(WAIT_S)
    plain = run_all(replace(job, shards=()), PlainCluster(first, 3, job.lr).store)
    found, expected = load(everything[0].uploads[0][0]), load(plain[0].uploads[0][0])
    assert found["table"].shape == (VOCABULARY, WIDTH)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=0, atol=1e-12, err_msg=key)
    for records in everything:
        sent = [traffic.sent_bytes for traffic in records.traffic]
        assert sent == sorted(sent)
        assert sent[-1] > 0
        assert records.traffic[-1].received_bytes > 0
