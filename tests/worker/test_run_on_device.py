"""Whole runs on a device that stands in for a GPU: host and device never mix, and results are the CPU's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from safetensors.numpy import load

import cuda_on_host
import weft_worker.cuda_device as cuda_device
from weft.api.lifecycle import AllocationEvent
from weft.api.store import AverageSpec, CommitSpec, LossScalingSpec
from weft_graph.ir import Graph
from weft_graph.passes.draft import Options, Precision
from weft_graph.types import DType
from weft_kvstore.local import LocalStore
from weft_worker.bind import bind
from weft_worker.device import CPU, CpuDevice, open_device
from weft_worker.errors import DeviceError
from weft_worker.run import Run
from weft_worker.settings import RunSettings
from weft_worker.task import Task
from worker_graphs import bags, mlp, normalized
from worker_jobs import BAG_COLUMNS, WAIT_S, Clock, Job, Records, programs_of, save_bags, save_data

pytest.importorskip("cupy", reason="the stand-in has CuPy's names; weft[cuda-compile] installs it")
import strict_arrays
from strict_device import StrictDevice

ROWS, HELD_OUT, STEPS = 60, 20, 4
DONE, FAILED = AllocationEvent.DONE, AllocationEvent.FAILED
GRAPHS: dict[str, Callable[[], Graph]] = {
    "mlp": lambda: mlp(DType.FLOAT32),
    "dropout": lambda: mlp(DType.FLOAT32, dropout=0.5),
    "normalized": lambda: normalized(DType.FLOAT32),
    "table": lambda: bags(DType.FLOAT32),
}


@pytest.fixture(params=["module", "kernels"])
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "kernels" and cuda_on_host.why_not():
        pytest.skip(f"CUDA kernels cannot be run on this CPU: {cuda_on_host.why_not()}")
    with strict_arrays.own_kernels() if request.param == "kernels" else nullcontext():
        yield request.param


@pytest.fixture
def device() -> Iterator[StrictDevice]:
    made = StrictDevice()
    yield made
    made.close()


def _job(name: str, folder: Path) -> Job:
    options: dict[str, Any] = {"columns": BAG_COLUMNS} if name == "table" else {}
    save = save_bags if name == "table" else save_data
    data = save(folder / f"{name}.npz", ROWS + HELD_OUT)
    evaluate = (ROWS, ROWS + HELD_OUT)
    return Job(programs_of(GRAPHS[name]()), data, STEPS, (0, ROWS), batch=25, evaluate=evaluate, **options)


def over_the_store(task: Task) -> LocalStore:
    return LocalStore(task.description)


def _records(
    job: Job, device: Any, store: Callable[[Task], LocalStore] | None = over_the_store, **settings: Any
) -> Records:
    """Without `store` the run keeps the values itself."""
    records = Records()
    options: Any = RunSettings(**settings)
    run = Run(job.allocation(0), records, records, options, device=lambda name: device, clock=Clock(), store=store)
    run.start()
    assert records.over.wait(WAIT_S)
    assert run.join(WAIT_S)
    return records


@pytest.mark.parametrize("serial", [False, True])
@pytest.mark.parametrize("name", GRAPHS)
def test_a_run_is_the_cpus(name: str, serial: bool, mode: str, device: StrictDevice, tmp_path: Path) -> None:
    if name == "table" and mode == "module":
        pytest.skip("rows are summed in order by this project's kernel alone")
    job = _job(name, tmp_path)
    expected, records = _records(job, CpuDevice()), _records(job, device, serial=serial)
    assert expected.last == (DONE, None)
    assert records.last == (DONE, None)
    given, wanted = load(records.uploads[-1][0]), load(expected.uploads[-1][0])
    assert given.keys() == wanted.keys()
    for key in wanted:
        np.testing.assert_allclose(given[key], wanted[key], rtol=1e-4, atol=1e-5, err_msg=key)
    assert len(expected.metrics) > 1
    for report, other in zip(records.metrics, expected.metrics, strict=True):
        assert report.sums == pytest.approx(other.sums, rel=1e-4)
    # What is fetched, fed and constant goes there; gradients and rows' ids come back, and nothing else does.
    assert device.sent > STEPS
    assert len(device.brought) >= STEPS * len(job.programs.keys) - STEPS


@pytest.mark.parametrize("name", ["mlp", "normalized"])
def test_values_that_a_run_keeps_itself_are_the_stores_and_stay_where_the_rule_runs(
    name: str, mode: str, device: StrictDevice, tmp_path: Path
) -> None:
    job = _job(name, tmp_path)
    expected, records = _records(job, CpuDevice()), _records(job, device, None)
    assert (expected.last, records.last) == ((DONE, None), (DONE, None))
    given, wanted = load(records.uploads[-1][0]), load(expected.uploads[-1][0])
    for key in wanted:
        np.testing.assert_allclose(given[key], wanted[key], rtol=1e-4, atol=1e-5, err_msg=key)
    assert set(device.brought) == {()}, "only metrics come to the host, no gradient"


def test_a_run_in_float16_and_in_parts_that_keeps_averages_is_the_cpus(device: StrictDevice, tmp_path: Path) -> None:
    plain = _job("mlp", tmp_path)
    programs = programs_of(mlp(DType.FLOAT32), options=Options(precision=Precision.FLOAT16))
    commit = CommitSpec(clip_norm=0.1, loss_scaling=LossScalingSpec())
    job = replace(plain, programs=programs, commit=commit, accumulate=3, average=AverageSpec(), evaluate_average=True)
    expected, records = _records(job, CpuDevice()), _records(job, device)
    assert (expected.last, records.last) == ((DONE, None), (DONE, None))
    given, wanted = load(records.uploads[-1][0]), load(expected.uploads[-1][0])
    for key in wanted:
        np.testing.assert_allclose(given[key], wanted[key], rtol=1e-2, atol=1e-3, err_msg=key)
    for report, other in zip(records.metrics, expected.metrics, strict=True):
        assert report.sums == pytest.approx(other.sums, rel=1e-2)


def test_a_wrong_label_is_named_as_on_the_cpu(mode: str, device: StrictDevice, tmp_path: Path) -> None:
    job = _job("mlp", tmp_path)
    with np.load(job.data) as columns:
        x, y = columns["x"], columns["y"].copy()
    y[3] = 77
    np.savez(job.data, x=x, y=y)
    reasons = [_records(job, where).last for where in (CpuDevice(), device)]
    assert reasons[0][0] == reasons[1][0] == FAILED
    for _, reason in reasons:
        assert reason is not None
        assert "label 77 in row 3 of column 'y', read in step 1, is not one of the 3 classes (0 to 2) of " in reason
        assert "'cross_entropy'" in reason


def test_a_copy_that_fails_ends_the_run(tmp_path: Path) -> None:
    device = StrictDevice(broken=True)
    event, reason = _records(_job("mlp", tmp_path), device).last
    device.close()
    assert event == FAILED
    assert "the copy broke" in str(reason)
    assert "Send" in str(reason)


def test_what_only_hosts_read_stays_there(device: StrictDevice) -> None:
    """Dropout's ratio and mode; a constant that a kernel computes with goes to the device."""
    program = programs_of(mlp(DType.FLOAT32, dropout=0.5)).train
    plan = bind(program, {"batch": 4}, device)
    by_name = {plan.names[place]: array for place, array in plan.constants.items()}
    assert isinstance(by_name["ratio"], np.ndarray)
    assert isinstance(by_name["is_training"], np.ndarray)


def test_the_cpu_is_a_device_that_copies_nothing() -> None:
    cpu = open_device(CPU)
    array = np.ones((2, 3), order="F")
    assert cpu.to_device(array) is array
    (brought,) = cpu.bring([array]).result(0)
    assert brought.flags.c_contiguous
    assert open_device(CPU) is cpu


def test_a_gpu_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    open_device.cache_clear()

    def missing() -> Any:
        raise ImportError("No module named 'cupy'")

    with monkeypatch.context() as patch:
        patch.setattr(cuda_device, "import_cupy", missing)
        with pytest.raises(
            DeviceError, match=r"'cuda:0' cannot be used: CuPy is not installed; pip install 'weft\[cuda\]'"
        ):
            open_device("cuda:0")
        assert open_device("auto").name == CPU
        assert "computing on the CPU, as no GPU can be used: CuPy is not installed" in caplog.text
    open_device.cache_clear()

    class Driver:
        class CUDARuntimeError(RuntimeError):
            pass

        def __init__(self, count: int | None) -> None:
            self.count = count
            self.cuda = self
            self.runtime = self

        def getDeviceCount(self) -> int:
            if self.count is None:
                raise self.CUDARuntimeError("insufficient driver")
            return self.count

    for count, number, why in ((None, 0, "there is no GPU .insufficient driver"), (1, 1, "has 1 GPU, numbered from 0")):
        monkeypatch.setattr(cuda_device, "import_cupy", lambda count=count: Driver(count))
        with pytest.raises(DeviceError, match=why):
            open_device(f"cuda:{number}")
    for wrong in ("gpu", "cuda", "cuda:", "cuda:-1", "CUDA:0", "cuda:x"):
        with pytest.raises(DeviceError, match="is none of cpu, auto"):
            open_device(wrong)
        with pytest.raises(ValidationError, match="device"):
            RunSettings(device=wrong)


def test_a_run_without_its_gpu_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_device, "why_not", lambda number: "there is no GPU")
    open_device.cache_clear()
    records = Records()
    run = Run(_job("mlp", tmp_path).allocation(0), records, records, RunSettings(device="cuda:0"), clock=Clock())
    run.start()
    assert records.over.wait(WAIT_S)
    assert records.last == (FAILED, "device 'cuda:0' cannot be used: there is no GPU")
