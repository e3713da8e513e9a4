"""A run does not depend on the number of workers, beyond the order of sums."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from plain_store import PlainCluster
from store_cluster import NamedStore
from weft.api.lifecycle import AllocationEvent
from weft_data.schedule import BatchPlan
from weft_graph.ir import Graph, Initializer, Parameter
from weft_graph.types import DType, TensorType
from weft_kernels.kernel import Array
from weft_kvstore.description.records import descriptions
from weft_kvstore.serving.shard_server import ShardServer
from worker_graphs import METRICS, mlp, normalized
from worker_jobs import WAIT_S, Job, programs_of, run_all, save_data

ROWS = 200
"""Not a multiple of the batch of 64: a pass ends with a batch of 8."""
STEPS = 20
DROPOUT = 0.3


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return save_data(tmp_path / "samples.npz", ROWS + 50)


def first_values(graph: Graph) -> dict[str, Array]:
    draw = np.random.default_rng(5)
    return {
        parameter.name: draw.uniform(-0.5, 0.5, parameter.type.static_shape)
        if parameter.trainable
        else np.full(parameter.type.static_shape, parameter.initializer.attributes["value"])
        for parameter in graph.parameters
    }


def trained(job: Job, graph: Graph, **settings) -> dict[str, Array]:
    """The final parameters of the job over a plain store."""
    means = [parameter.name for parameter in graph.parameters if not parameter.trainable]
    cluster = PlainCluster(first_values(graph), job.slots, job.lr, means)
    everything = run_all(job, cluster.store, **settings)
    for records in everything:
        assert records.last == (AllocationEvent.DONE, None)
    ((document, step, final),) = everything[job.keeper].uploads
    assert (step, final) == (job.steps, True)
    return load(document)


def job_of(graph: Graph, data: Path, **options) -> Job:
    return Job(programs_of(graph, METRICS), data, STEPS, (0, ROWS), **options)


@pytest.mark.parametrize("dropout", [None, DROPOUT])
@pytest.mark.parametrize("slots", [2, 3])
def test_several_workers_equal_one_on_the_same_samples(data, slots, dropout):
    """2 x 32 (3 x 21 or 22) equal 1 x 64 to 1e-9 over 20 steps in float64, with uneven parts at the ends of passes."""
    graph = mlp(dropout=dropout)
    alone = trained(job_of(graph, data), graph)
    together = trained(job_of(graph, data, slots=slots), graph)
    for key, value in alone.items():
        np.testing.assert_allclose(together[key], value, rtol=0, atol=1e-9, err_msg=key)
        assert not np.array_equal(value, first_values(graph)[key]), f"{key} was not trained at all"


def test_dropout_masks_differ_when_the_seed_does(data):
    """Else the equality above would also hold for a net whose Dropout does nothing."""
    graph = mlp(dropout=DROPOUT)
    one, other = (trained(job_of(graph, data, seed=seed), graph) for seed in (1, 2))
    without = trained(job_of(mlp(), data, seed=1), mlp())
    assert not np.allclose(one["w2"], other["w2"], atol=1e-6)
    assert not np.allclose(one["w2"], without["w2"], atol=1e-6)


def test_a_slot_without_samples_declares_nothing_and_changes_nothing(data):
    """A pass of 200 rows in batches of 66 ends with 2 rows, which leave the third slot without any."""
    graph = mlp(dropout=DROPOUT)
    alone = trained(job_of(graph, data, batch=66), graph)
    together = trained(job_of(graph, data, batch=66, slots=3), graph)
    for key, value in alone.items():
        np.testing.assert_allclose(together[key], value, rtol=0, atol=1e-9, err_msg=key)


def test_a_slot_that_never_has_samples_keeps_pace_with_the_others(data):
    """Two samples a step leave the third slot without any; the store refuses a slot that runs too far ahead."""
    graph = mlp()
    alone = trained(job_of(graph, data, batch=2), graph)
    together = trained(job_of(graph, data, batch=2, slots=3), graph)
    for key, value in alone.items():
        np.testing.assert_allclose(together[key], value, rtol=0, atol=1e-9, err_msg=key)


def test_a_key_that_no_step_sends_keeps_its_first_value_and_moves_on(data):
    graph = mlp()
    first = Initializer("ConstantOfShape", {"value": 0.5})
    idle = Parameter("idle", TensorType(DType.FLOAT64, (3,)), first, trainable=False)
    graph = replace(graph, parameters=(*graph.parameters, idle))
    found = trained(job_of(graph, data, slots=3, batch=66), graph)
    np.testing.assert_array_equal(found["idle"], [0.5, 0.5, 0.5])


@pytest.mark.parametrize("settings", [{"serial": True}, {"compute_threads": 4}, {"steps_in_flight": 1}], ids=str)
def test_how_a_run_uses_its_machine_changes_no_bit(data, settings):
    graph = mlp(dropout=DROPOUT)
    usual = trained(job_of(graph, data, slots=3), graph)
    other = trained(job_of(graph, data, slots=3), graph, **settings)
    for key, value in usual.items():
        np.testing.assert_array_equal(other[key], value, err_msg=key)


@pytest.fixture
def shards() -> Iterator[list[ShardServer]]:
    with ExitStack() as stack:
        servers = [stack.enter_context(ShardServer("tcp://127.0.0.1:0")) for _ in range(2)]
        for server in servers:
            server.start()
        yield servers


def sharded(job: Job, shards: list[ShardServer]) -> dict[str, Array]:
    """The final parameters of the job over shards that serve it on loopback."""
    description = descriptions.from_builtins(job.store_spec().model_dump(mode="json"))
    for number, server in enumerate(shards):
        server.open(description, number)
    everything = run_all(job)
    assert [records.last for records in everything] == [(AllocationEvent.DONE, None)] * job.slots
    ((document, _, _),) = everything[job.keeper].uploads
    return load(document)


def test_three_workers_over_the_store_of_one_process_equal_the_plain_formula(data):
    """The store makes the first values itself; the plain one starts from those, as they are pulled at version 0."""
    graph = mlp(dropout=DROPOUT)
    job = job_of(graph, data, slots=3)
    description = descriptions.from_builtins(job.store_spec().model_dump(mode="json"))
    with NamedStore(description) as store:
        first = {plan.key: store.pull(plan.key, 0).result(WAIT_S) for plan in job.programs.keys}
        everything = run_all(job, store.at_slot)
    found = load(everything[0].uploads[0][0])
    plain = run_all(job, PlainCluster(first, job.slots, job.lr).store)
    for key, value in load(plain[0].uploads[0][0]).items():
        np.testing.assert_allclose(found[key], value, rtol=0, atol=1e-12, err_msg=key)


def test_three_workers_and_two_shards_equal_one_worker_with_its_own_store(data, shards):
    graph = mlp(dropout=DROPOUT)
    (alone,) = run_all(job_of(graph, data))
    assert alone.last == (AllocationEvent.DONE, None)
    expected = load(alone.uploads[0][0])
    endpoints = tuple(server.endpoint for server in shards)
    found = sharded(job_of(graph, data, slots=3, shards=endpoints, evaluate=(ROWS, ROWS + 50)), shards)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=0, atol=1e-9, err_msg=key)


def test_running_statistics_are_the_mean_over_slots_of_the_plain_formula(data):
    """running = 0.9 * running + 0.1 * batch statistic, as in ONNX's BatchNormalization; then the mean over slots."""
    graph, slots = normalized(), 2
    job = Job(programs_of(graph), data, 1, (0, 64), batch=64, slots=slots)
    found = trained(job, graph)
    first = first_values(graph)
    with np.load(data) as columns:
        _, rows = BatchPlan(*job.train, job.batch, job.seed, True).at(0)
        hidden = columns["x"][rows] @ first["w1"] + first["b1"]
    halves = np.split(hidden, slots)
    for key, before, statistic in (("mean", 0.0, np.mean), ("var", 1.0, np.var)):
        expected = np.mean([0.9 * before + 0.1 * statistic(half, axis=0) for half in halves], axis=0)
        np.testing.assert_allclose(found[key], expected, rtol=0, atol=1e-12, err_msg=key)
