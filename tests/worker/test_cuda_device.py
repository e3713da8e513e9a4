"""In which order a GPU is given kernels, copies and events, told by a CuPy that stands in for it."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

import strict_arrays
import weft_worker.segments as segments
from weft.api.lifecycle import AllocationEvent
from weft_graph.ir import Constant, Graph, Input, Node
from weft_graph.program import Programs
from weft_graph.types import BATCH, DType, TensorType
from weft_kvstore.local import LocalStore
from weft_worker.bind import bind
from weft_worker.cuda_device import CudaDevice
from weft_worker.device import CpuDevice, Device
from weft_worker.graphs import Graphs, may_capture, stretches
from weft_worker.run import Run
from weft_worker.settings import RunSettings
from weft_worker.task import Task
from worker_graphs import FEATURES, HIDDEN, mlp, normalized, parameter
from worker_jobs import WAIT_S, Clock, Job, Records, programs_of, save_data

pytest.importorskip("cupy", reason="the stand-in has CuPy's names; weft[cuda-compile] installs it")
import strict_cupy
from strict_cupy import CUDARuntimeError, Entry, StrictCupy

DONE, FAILED = AllocationEvent.DONE, AllocationEvent.FAILED
STEPS, ROWS = 4, 60

Made = Callable[[], tuple[CudaDevice, StrictCupy]]


@pytest.fixture
def made() -> Iterator[Made]:
    with strict_arrays.own_kernels(), strict_cupy.cuda_devices() as made:
        yield made


def over_the_store(task: Task) -> LocalStore:
    return LocalStore(task.description)


def job_of(folder: Path, programs: Programs | None = None, steps: int = STEPS, **options: Any) -> Job:
    data = save_data(folder / "samples.npz", ROWS)
    return Job(programs or programs_of(mlp(DType.FLOAT32)), data, steps, (0, ROWS), batch=25, **options)


def deep() -> Programs:
    """Three layers and no labels, which are checked on the host; a shape is there."""
    nodes = (
        Node("MatMul", "first", ("x", "w0"), ("h0",)),
        Node("Reshape", "shaped", ("h0", "shape"), ("r0",)),
        Node("Tanh", "bent", ("r0",), ("a0",)),
        Node("Flatten", "flat", ("a0",), ("f0",)),
        Node("MatMul", "second", ("f0", "w1"), ("h1",)),
        Node("Tanh", "bent_again", ("h1",), ("a1",)),
        Node("MatMul", "third", ("a1", "w2"), ("h2",)),
        Node("ReduceMean", "mean", ("h2",), ("loss",), {"keepdims": 0}),
    )
    inputs = (Input("x", TensorType(DType.FLOAT32, (BATCH, FEATURES))),)
    sizes = (FEATURES, 8, 5, 2)
    parameters = tuple(parameter(f"w{each}", (sizes[each], sizes[each + 1]), DType.FLOAT32) for each in range(3))
    shape = Constant("shape", np.array([-1, 4, 2]))
    return programs_of(Graph("deep", inputs, parameters, nodes, ("loss",), constants=(shape,)), metrics={})


def records_of(job: Job, device: Device, *, own: bool = False, **settings: object) -> Records:
    """Of a run whose values are the store's, or its own."""
    records, options = Records(), RunSettings(**settings)  # type: ignore[arg-type]
    store = None if own else over_the_store
    run = Run(job.allocation(0), records, records, options, device=lambda name: device, clock=Clock(), store=store)
    run.start()
    assert records.over.wait(WAIT_S)
    assert run.join(WAIT_S)
    return records


def assert_as_on_the_cpu(records: Records, job: Job, **how: bool) -> None:
    expected = records_of(job, CpuDevice(), **how)
    assert (expected.last, records.last) == ((DONE, None), (DONE, None))
    given, wanted = load(records.uploads[-1][0]), load(expected.uploads[-1][0])
    assert given.keys() == wanted.keys()
    for key in wanted:
        np.testing.assert_allclose(given[key], wanted[key], rtol=1e-4, atol=1e-5, err_msg=key)
    for report, other in zip(records.metrics, expected.metrics, strict=True):
        assert report.sums == pytest.approx(other.sums, rel=1e-4)


def is_kernel(entry: Entry, cupy: StrictCupy) -> bool:
    return entry.stream is cupy.streams[0] and entry.what not in {"record", "wait", "asnumpy"}


@pytest.mark.parametrize("serial", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_a_run_gives_what_it_gives_on_the_cpu(serial: bool, own: bool, made: Made, tmp_path: Path) -> None:
    device, _ = made()
    job = job_of(tmp_path)
    assert_as_on_the_cpu(records_of(job, device, own=own, serial=serial), job, own=own)


@pytest.fixture
def cut_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients may leave at every node."""
    monkeypatch.setattr(segments, "CUT_OPERATIONS", 1)
    monkeypatch.setattr(segments, "LONG_OPERATIONS", 1)


@pytest.mark.usefixtures("cut_often")
def test_a_copy_waits_for_an_event_right_behind_what_made_its_array(made: Made, tmp_path: Path) -> None:
    """Later kernels, which were started before the store's thread had its turn, do not hold it up."""
    device, cupy = made()
    steps = 1
    job = job_of(tmp_path, deep(), steps, columns={"x": "x"})
    assert records_of(job, device, serial=True).last == (DONE, None)
    kernels, copies = cupy.streams[:2]
    awaited = [each.event for each in cupy.started if each.what == "wait" and each.stream is copies]
    assert len(awaited) > 2, "the net's gradients leave in several pieces"
    for event in awaited:
        (number,) = (
            number for number, each in enumerate(cupy.started) if each.what == "record" and each.event is event
        )
        assert cupy.started[number].stream is kernels
        assert is_kernel(cupy.started[number - 1], cupy), "the event is recorded behind a kernel"
    assert cupy.started[number].event is awaited[-1]
    first = next(number for number, each in enumerate(cupy.started) if each.event is awaited[0])
    between = [each for each in cupy.started[first:number] if is_kernel(each, cupy)]
    assert len(between) > 2, "kernels are started behind the first copy"


@pytest.mark.usefixtures("cut_often")
def test_a_kernel_waits_for_what_it_reads_to_be_uploaded_and_for_nothing_else(made: Made, tmp_path: Path) -> None:
    device, cupy = made()
    job = job_of(tmp_path, deep(), 1, columns={"x": "x"})
    assert records_of(job, device, serial=True).last == (DONE, None)
    kernels, _, uploads = cupy.streams
    sent = [each for each in cupy.started if each.what == "upload"]
    assert len(sent) == 5, "the batch, its part of the step and three weights"
    assert {each.stream for each in sent} == {uploads}
    told = [
        "wait" if each.what == "wait" else "product"
        for each in cupy.started
        if each.stream is kernels and each.what in {"wait", "matmul"}
    ]
    assert told[:6] == ["wait", "wait", "product", "wait", "product", "wait"]
    assert {
        each.event.stream for each in cupy.started if each.event and (each.what, each.stream) == ("wait", kernels)
    } == {uploads}


def test_an_evaluation_uploads_the_values_once_for_all_its_batches(made: Made, tmp_path: Path) -> None:
    device, cupy = made()
    job = job_of(tmp_path, evaluate=(0, ROWS), evaluate_every=2)
    records = records_of(job, device)
    shapes = {key.type.static_shape for key in job.programs.keys}
    sent = [each.made.shape for each in cupy.started if each.what == "upload" and each.made.shape in shapes]
    evaluations = STEPS // 2
    assert len(sent) == (STEPS + evaluations) * len(job.programs.keys)
    assert_as_on_the_cpu(records, job)


def test_what_is_uploaded_is_held_until_it_was_copied(made: Made) -> None:
    """Its memory would be given to the next upload."""
    device, cupy = made()
    uploaded = [device.upload(np.full(3, number, np.float32)) for number in range(3)]
    with device.use():
        landed = [each.land() for each in uploaded]
        assert [strict_arrays.to_host(each).tolist() for each in landed] == [[n] * 3 for n in range(3)]
        out = cupy.empty(3, dtype=np.float32)
        again = device.upload(np.ones(3, np.float32))
        assert again.land(out) is out
        assert again.land() is out
    assert strict_arrays.to_host(out).tolist() == [1, 1, 1]


def test_the_next_step_is_started_before_the_steps_loss_is_on_the_host(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever waits for the GPU waits until two steps have been started."""
    device, cupy = made()
    begun, seen = threading.Event(), list[bool]()
    end, note, asnumpy = strict_cupy.Event.synchronize, cupy.note, cupy.asnumpy

    def noting(what: str, stream: strict_cupy.Stream | None, **more: Any) -> None:
        note(what, stream, **more)
        if products(cupy) > PRODUCTS:
            begun.set()

    def slow(event: strict_cupy.Event) -> None:
        seen.append(begun.wait(WAIT_S))
        end(event)

    def slow_too(array: Any) -> Any:
        seen.append(begun.wait(WAIT_S))
        return asnumpy(array)

    monkeypatch.setattr(strict_cupy.Event, "synchronize", slow)
    monkeypatch.setattr(cupy, "note", noting)
    monkeypatch.setattr(cupy, "asnumpy", slow_too)
    job = job_of(tmp_path, deep(), columns={"x": "x"})
    assert records_of(job, device, own=True, cuda_graphs=False).last == (DONE, None)
    assert seen
    assert all(seen)
    assert products(cupy) == STEPS * PRODUCTS


PRODUCTS = 8
"""Of matrices, in a step of `deep`."""


def products(cupy: StrictCupy) -> int:
    return sum(each.what == "matmul" for each in cupy.started)


@pytest.mark.parametrize("own", [False, True])
def test_a_step_waits_for_events_and_for_no_stream(own: bool, made: Made, tmp_path: Path) -> None:
    device, cupy = made()
    job = job_of(tmp_path, deep(), columns={"x": "x"})
    assert records_of(job, device, own=own).last == (DONE, None)
    ends = [each for each in cupy.started if each.what == "event.synchronize"]
    assert len(ends) >= STEPS
    drained = [each.what for each in cupy.started if each.what in {"stream.synchronize", "asnumpy"}]
    assert drained == ["asnumpy"] * (len(job.programs.keys) if own else 0), "the trained values alone are waited for"


@pytest.mark.parametrize("own", [False, True])
def test_a_kernel_that_failed_ends_the_run_at_its_step(
    own: bool, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, _ = made()

    def broken(event: strict_cupy.Event) -> None:
        raise CUDARuntimeError("cudaErrorIllegalAddress")

    monkeypatch.setattr(strict_cupy.Event, "synchronize", broken)
    event, reason = records_of(job_of(tmp_path), device, own=own).last
    assert event == FAILED
    assert "step 1" in str(reason)
    assert "device 'cuda:0': cudaErrorIllegalAddress" in str(reason)


# --- CUDA graphs ------------------------------------------------------------------------------------------------------


def count(cupy: StrictCupy, what: str) -> int:
    return sum(each.what == what for each in cupy.started)


@pytest.mark.parametrize("name", ["deep", "labels", "normalized", "async", "parts"])
@pytest.mark.parametrize("own", [False, True])
def test_a_steps_kernels_are_captured_once_and_launched_as_a_whole_with_the_same_bits(
    name: str, own: bool, made: Made, tmp_path: Path
) -> None:
    steps = 8
    options = {"async": {"mode": "async"}, "parts": {"accumulate": 3}}.get(name, {})
    labelled = {"labels": mlp, "normalized": normalized}.get(name)
    columns = {} if labelled else {"columns": {"x": "x"}}
    job = job_of(tmp_path, programs_of(labelled(DType.FLOAT32)) if labelled else deep(), steps, **columns, **options)
    device, plain = made()
    expected = records_of(job, device, own=own, cuda_graphs=False)
    device, cupy = made()
    records = records_of(job, device, own=own)
    assert (expected.last, records.last) == ((DONE, None), (DONE, None))
    assert load_bytes(records) == load_bytes(expected)
    assert [each.sums for each in records.metrics] == [each.sums for each in expected.metrics]
    assert count(plain, "capture") == count(plain, "graph") == 0
    assert count(cupy, "capture") >= 1
    assert count(cupy, "graph") >= 3 * count(cupy, "capture"), "each is launched in most steps"
    assert count(cupy, "matmul") <= count(plain, "matmul") / 2
    last = max(number for number, each in enumerate(cupy.started) if each.what == "capture")
    assert all(each.what != "matmul" for each in cupy.started[last:]), "nothing is captured again, or started by itself"


def load_bytes(records: Records) -> dict[str, bytes]:
    return {key: value.tobytes() for key, value in load(records.uploads[-1][0]).items()}


def test_values_that_lie_elsewhere_in_each_step_are_read_where_they_lie(made: Made, tmp_path: Path) -> None:
    """Of keys that the worker updates itself, each step has a copy of its own."""
    job = job_of(tmp_path, deep(), 8, columns={"x": "x"}, local=True)
    device, _ = made()
    expected = records_of(job, device, cuda_graphs=False)
    device, _ = made()
    records = records_of(job, device)
    assert (expected.last, records.last) == ((DONE, None), (DONE, None))
    assert load_bytes(records) == load_bytes(expected)


@pytest.mark.parametrize("fails", ["begin_capture", "end_capture", "work"])
def test_what_cannot_be_captured_is_started_kernel_by_kernel(
    fails: str, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> Any:
        raise CUDARuntimeError("cudaErrorStreamCaptureUnsupported")

    end = strict_cupy.Stream.end_capture

    def invalid(stream: strict_cupy.Stream) -> Any:
        stream.is_invalid = True
        return end(stream)

    name = "capture" if fails == "work" else fails
    monkeypatch.setattr(strict_cupy.Stream, name, invalid if name == "end_capture" else broken)
    device, cupy = made()
    job = job_of(tmp_path, deep(), columns={"x": "x"})
    records = records_of(job, device)
    assert_as_on_the_cpu(records, job)
    assert count(cupy, "graph") == 0
    told = [each.getMessage() for each in caplog.records if "CUDA graph" in each.getMessage()]
    assert len(told) == 1, "it is tried once"
    assert "cudaErrorStreamCapture" in told[0]


def test_what_draws_or_is_looked_at_or_has_no_fixed_size_is_not_captured() -> None:
    """Dropout draws other numbers in each step; labels are looked at by the host."""
    plan = bind(programs_of(mlp(DType.FLOAT32, dropout=0.5)).train, {"batch": 4})
    kernels = [bound for bound in plan.nodes if bound.kernel is not None]
    refused = {bound.node.op_type for bound in kernels if not may_capture(bound, plan.types, plan.constants)}
    assert refused == {"Dropout", "SoftmaxCrossEntropyLoss"}
    parts = stretches(kernels, plan.types, plan.constants)
    assert [bound for part in parts for bound in part.nodes] == kernels
    for part in parts:
        assert part.is_graph == (len(part.nodes) > 1 and refused.isdisjoint(each.node.op_type for each in part.nodes))
        assert set(part.reads).isdisjoint(part.makes)
    sized = next(bound for bound in kernels if bound.node.op_type == "Gemm")
    (output,) = [place for place in sized.outputs if place is not None]
    types = list(plan.types)
    types[output] = TensorType(DType.FLOAT32, ("?", HIDDEN))
    assert may_capture(sized, plan.types, plan.constants)
    assert not may_capture(sized, types, plan.constants)


def test_what_is_copied_from_where_it_arrived_arrives_elsewhere_in_the_next_run(made: Made) -> None:
    device, _ = made()
    plan = bind(deep().train, {"batch": 4}, device)
    given = {*plan.inputs.values(), *plan.fetched.values()}
    assert Graphs(plan, device).landed.keys() == given
    x = plan.inputs["x"]
    assert Graphs(replace(plan, outputs={"loss": x}), device).landed.keys() == given - {x}


def test_nothing_is_captured_while_another_thread_uses_the_device(made: Made) -> None:
    device, cupy = made()
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with device.use():
            entered.set()
            assert leave.wait(WAIT_S)

    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(WAIT_S)
    with device.use():
        assert device.capture(lambda: None) is None
        leave.set()
        thread.join(WAIT_S)
        assert device.capture(lambda: None) is not None
    assert count(cupy, "capture") == 1


def test_another_thread_uses_the_device_once_a_capture_has_ended(made: Made) -> None:
    device, cupy = made()
    threads: list[threading.Thread] = []

    def work() -> None:
        threads.append(threading.Thread(target=device.to_device, args=(np.ones(3, np.float32),)))
        threads[0].start()

    with device.use():
        assert device.capture(work) is not None
    threads[0].join(WAIT_S)
    assert [each.what for each in cupy.started if each.what in {"capture", "to the device"}] == ["capture"]
    assert not cupy.streams[0].is_invalid


def test_a_gpu_is_called_by_its_number_and_model(made: Made) -> None:
    device, _ = made()
    assert device.title == "cuda:0 Strict GPU"


@pytest.mark.parametrize(
    ("allowed", "capability", "kind"), [(False, "90", "DEFAULT"), (True, "80", "TF32"), (True, "75", "DEFAULT")]
)
def test_products_are_computed_in_tf32_where_the_job_allows_it_and_the_gpu_can(
    allowed: bool, capability: str, kind: str, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, _ = made()
    monkeypatch.setattr(strict_cupy.Device, "compute_capability", capability)
    products, told = importlib.import_module("cupy._core._routines_linalg"), []
    monkeypatch.setattr(products, "set_compute_type", lambda *given: told.append(given))
    job = job_of(tmp_path, deep(), 1, columns={"x": "x"}, allow_tf32=allowed)
    records = records_of(job, device)
    assert records.last == (DONE, None)
    assert told == [(np.float32, getattr(products, f"COMPUTE_TYPE_{kind}"))]
    is_in_vain = allowed and kind == "DEFAULT"
    assert ["allow_tf32 has no effect" in line.message for line in records.logs] == [True] * is_in_vain
