"""Keys that a worker updates itself, on a device that stands in for a GPU: they live there and are updated there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

import cuda_on_host
import rule_documents
from weft.api.lifecycle import AllocationEvent
from weft_graph.types import DType
from weft_kvstore.client.store_client import Store
from weft_kvstore.local import LocalStore
from weft_worker.device import CpuDevice
from weft_worker.local_update import LocalUpdateStore
from weft_worker.run import Run, kept_on_device, store_of
from weft_worker.settings import RunSettings
from weft_worker.task import task_of
from worker_graphs import mlp
from worker_jobs import WAIT_S, Clock, Job, Records, programs_of, save_data

pytest.importorskip("cupy", reason="the stand-in has CuPy's names; weft[cuda-compile] installs it")
import strict_arrays
from strict_device import StrictDevice

ROWS, STEPS = 60, 5
DONE = AllocationEvent.DONE
KEYS = ("w1", "b1", "w2", "b2")
BUILT_IN: Mapping[str, Mapping[str, float]] = {
    "sgd": {"lr": 0.1, "weight_decay": 0.01},
    "momentum": {"lr": 0.1, "momentum": 0.9},
    "adam": {"lr": 0.01},
    "adagrad": {"lr": 0.1},
}


@pytest.fixture
def kernels() -> Iterator[None]:
    if cuda_on_host.why_not():
        pytest.skip(f"CUDA kernels cannot be run on this CPU: {cuda_on_host.why_not()}")
    with strict_arrays.own_kernels():
        strict_arrays.launched.clear()
        yield


@pytest.fixture
def device() -> Iterator[StrictDevice]:
    made = StrictDevice()
    yield made
    made.close()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    data = save_data(tmp_path / "samples.npz", ROWS + 20)
    options: dict[str, Any] = {"local": True, "keep_state": True, "evaluate": (ROWS, ROWS + 20), "evaluate_every": 2}
    return Job(programs_of(mlp(DType.FLOAT32)), data, STEPS, (0, ROWS), batch=25, **options)


def document(job: Job, device: Any) -> Mapping[str, Any]:
    """The final parameters and state of a run there."""
    records = Records()
    run = Run(job.allocation(0), records, records, RunSettings(), device=lambda name: device, clock=Clock())
    run.start()
    assert records.over.wait(WAIT_S)
    assert run.join(WAIT_S)
    assert records.last == (DONE, None)
    return load(records.uploads[-1][0])


def assert_close(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("rule", BUILT_IN)
@pytest.mark.usefixtures("kernels")
def test_built_in_rules_update_by_their_kernels(rule: str, job: Job, device: StrictDevice) -> None:
    job = replace(job, rule=rule, hyper=BUILT_IN[rule])
    found = document(job, device)
    assert strict_arrays.launched.count(f"{rule}<float>") == STEPS * len(KEYS)
    assert_close(found, document(job, CpuDevice()))


@pytest.mark.usefixtures("kernels")
def test_a_users_rule_updates_by_its_generated_kernel(job: Job, device: StrictDevice) -> None:
    job = replace(job, rule=rule_documents.momentum(), hyper={})
    found = document(job, device)
    assert strict_arrays.launched.count("fused") == STEPS * len(KEYS)
    assert_close(found, document(job, CpuDevice()))


@pytest.mark.usefixtures("kernels")
def test_a_rule_that_needs_keys_whole_runs_on_the_host(job: Job, device: StrictDevice) -> None:
    job = replace(job, rule=rule_documents.normalized(), hyper={}, whole=True)
    store, there = opened(job, device)
    store.close()
    assert there is None
    assert_close(document(job, device), document(job, CpuDevice()))


def test_without_kernels_rules_run_on_the_host(job: Job, device: StrictDevice) -> None:
    store, there = opened(job, device)
    store.close()
    assert there is None
    assert_close(document(job, device), document(job, CpuDevice()))


def opened(job: Job, device: Any) -> tuple[Store, Any]:
    store = store_of(task_of(job.allocation(0)), lambda task: LocalStore(task.description), device)
    return store, kept_on_device(store, device)


@pytest.mark.usefixtures("kernels")
def test_values_do_not_cross_for_a_step_and_each_is_the_callers_own(job: Job, device: StrictDevice) -> None:
    store, there = opened(replace(job, rule="momentum", hyper={"lr": 0.5, "momentum": 0.5}), device)
    assert all(there.has(key) for key in KEYS)
    first = there.pull_on_device("b2", 0).result(WAIT_S)
    crossed = device.sent
    again = there.pull_on_device("b2", 0).result(WAIT_S)
    assert device.sent == crossed == 1
    ones = np.ones(first.shape, np.float32)
    store.push("b2", 0, ones)
    later = there.pull_on_device("b2", 1).result(WAIT_S)
    assert device.sent == crossed + 1
    np.testing.assert_array_equal(strict_arrays.to_host(first), strict_arrays.to_host(again))
    np.testing.assert_allclose(strict_arrays.to_host(later), strict_arrays.to_host(first) - 0.5, rtol=1e-6)
    value, state = store.pull("b2", 1).result(WAIT_S), store.pull("b2", 1, state=True).result(WAIT_S)
    assert isinstance(value, np.ndarray)
    np.testing.assert_array_equal(value, strict_arrays.to_host(later))
    np.testing.assert_array_equal(state["momentum"], ones)
    store.close()


@pytest.mark.usefixtures("kernels")
def test_a_state_that_starts_elsewhere_starts_there_on_a_device_too(job: Job, device: StrictDevice) -> None:
    job = replace(job, rule={"name": "adagrad", "state": {"sum": 0.25}}, hyper={"lr": 0.1})
    assert_close(document(job, device), document(job, CpuDevice()))
    assert strict_arrays.launched.count("adagrad<float>") == STEPS * len(KEYS)


def test_a_store_over_a_device_of_the_host_hands_out_nothing_there(job: Job) -> None:
    cpu = CpuDevice()
    store, there = opened(job, cpu)
    store.close()
    assert isinstance(store, LocalUpdateStore)
    assert there is None
