"""One allocation carried out on a thread: everything is opened, bound, trained, closed."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from typing import Protocol

from weft.agent.machine import exhausted
from weft.api.agent import LogReport, SnapshotDone, WorkerAllocation
from weft.api.lifecycle import AllocationEvent
from weft_data.source import Source
from weft_graph.weft_domain import FETCH_ROWS, SEND_ROWS
from weft_kvstore.client.store_client import Store, StoreClient
from weft_kvstore.description.check import rule_of
from weft_kvstore.description.records import Mode
from weft_kvstore.encryption import CurveKeys
from weft_kvstore.errors import StoreLostError
from weft_kvstore.local import LocalStore
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.snapshot import Captured, MissedError, all_captured, saved
from weft_kvstore.snapshot_files import SnapshotError, has_marker
from weft_worker.bind import Binder
from weft_worker.checkpointer import Checkpointer
from weft_worker.device import CPU, CapturingDevice, Device, open_device
from weft_worker.engine.engine import Engine
from weft_worker.engine.errors import EngineError
from weft_worker.engine.serial import SerialEngine
from weft_worker.engine.threaded import ThreadedEngine
from weft_worker.errors import StoppedError, WorkerError
from weft_worker.evaluation import AveragedStore, Evaluation
from weft_worker.feed import Feeder
from weft_worker.local_keys import updating_on
from weft_worker.local_update import LocalUpdateStore
from weft_worker.ordered_sets import OrderedSets
from weft_worker.own_values import OwnStore, has_own_values
from weft_worker.reports import Reporter, RunReports
from weft_worker.run_store import RunStore
from weft_worker.schedule import Schedule
from weft_worker.settings import RunSettings
from weft_worker.sharded_store import ShardedStore
from weft_worker.step.inline import OwnValues, SharedValues
from weft_worker.step.pusher import StepPusher
from weft_worker.step.run import COMPUTE, IO, InlineStore, Runtime
from weft_worker.task import Task, open_data, schedule_of, task_of
from weft_worker.training import RunSignals, Training
from weft_worker.training_steps import TrainingSteps
from weft_worker.value_setter import ValueSetter

OpenStore = Callable[[Task], Store | RunStore]
OpenDevice = Callable[[str], Device]

CLOSE_TIMEOUT_S = 30.0
"""For a store to close: far above the good-byes that it says."""


class Listener(Protocol):
    """Who is told how a run goes. Both are called on the run's thread and must be quick."""

    def reached(self, event: AllocationEvent, reason: str | None, *, lost: bool = False) -> None:
        """Ready, running, done or failed."""

    def ended(self) -> None:
        """Everything is closed; always the last call, exactly once."""


def open_store(task: Task, device: Device | None = None) -> Store | RunStore:
    """The way to the job's shards; without any, the values are kept in this process, on the device."""
    if _has_own_values(task):
        return OwnStore(task.description, device, task.snapshot)
    if not task.description.shards:
        return LocalStore(task.description, snapshot=task.snapshot)
    allocation, keys = task.allocation, task.allocation.curve
    patience_s = LinkSettings().request_timeout_s + allocation.lost_after_s
    settings = LinkSettings(silence_s=allocation.lost_after_s, request_timeout_s=patience_s)
    client = StoreClient(
        task.description,
        allocation.slot,
        incarnation=allocation.incarnation,
        settings=settings,
        curve_keys=None if keys is None else CurveKeys(keys.public, keys.secret),
    )
    if task.snapshot is not None and task.description.compression is not None:
        try:
            client.resume(task.snapshot, CLOSE_TIMEOUT_S)
        except BaseException:
            client.close()
            raise
    return client


def _has_own_values(task: Task) -> bool:
    return has_own_values(task.description) and not task.local.keys


def _needs_one_pushpull(task: Task, device: Device) -> bool:
    """Whether one pushpull per step is enough: sync mode, a CPU, dense keys alone, no commit, no compression, and no
    key that this worker updates or has nothing for."""
    description, kinds = task.description, {node.op_type for node in task.programs.train.nodes}
    return (
        bool(description.shards)
        and description.mode is Mode.SYNC
        and description.commit is None
        and description.compression is None
        and device.name == CPU
        and not task.local.keys
        and not task.contributions.nothing
        and task.allocation.accumulate == 1
        and kinds.isdisjoint({FETCH_ROWS, SEND_ROWS})
    )


def _batch_bytes(task: Task, source: Source) -> int:
    """Of the columns that the job reads."""
    columns = source.describe().columns
    sample = sum(column.dtype.numpy.itemsize * math.prod(column.row_shape) for column in columns)
    return sample * task.allocation.data.batch_size


def store_of(task: Task, opened: OpenStore, device: Device) -> RunStore:
    """The store as the run uses it: over the opened one, where that is not this worker's own."""
    found, local = opened(task), task.local
    store = ShardedStore(found, task.description, task.allocation.slot) if isinstance(found, Store) else found
    if not local.keys:
        return store
    updating = updating_on(device, task.description, rule_of(task.description), local.keys.values())
    return LocalUpdateStore(store, local, updating, snapshot=task.snapshot)


READ_AHEAD_BYTES = 1 << 20
"""Of a batch: one that is larger is read while the step before it computes, on a thread of its own."""

Capture = Callable[[int, Callable[[Captured | MissedError], None]], None]
"""capture(step, done): that of a store."""


def captures_of(store: RunStore, task: Task, since: int | None) -> list[Capture]:
    """How to capture what this process alone keeps of the job. Of keys that all workers update alike, that is slot 0's.
    `since`: of tables what has changed since the capture at that step, if that is known."""
    within = store.within if isinstance(store, LocalUpdateStore) else store
    keeper: Store | RunStore = within.store if isinstance(within, ShardedStore) else within
    found: list[Capture] = []
    if isinstance(store, LocalUpdateStore) and not task.allocation.slot:
        found.append(store.capture)
    if isinstance(keeper, (OwnStore, LocalStore)):
        found.append(partial(keeper.capture, since=since))
    elif isinstance(keeper, StoreClient) and task.description.compression is not None:
        found.append(keeper.capture)
    return found


def kept_on_device(store: RunStore, device: Device) -> LocalUpdateStore | None:
    """The store whose keys are on the device."""
    return store if isinstance(store, LocalUpdateStore) and store.device is device else None


PLACE_WAIT_S = 10.0
PLACE_LOOK_S = 0.1


def _await_place(folder: str) -> None:
    """Until the server has made the place of the job's snapshots, which it does while the job begins: a short job may
    be done before. Not for longer than `PLACE_WAIT_S`; whoever writes there then says what is wrong."""
    until = time.monotonic() + PLACE_WAIT_S
    with suppress(SnapshotError):
        while not has_marker(folder) and time.monotonic() < until:
            time.sleep(PLACE_LOOK_S)


class Run:
    """A run on a thread of its own, which `start` makes. `stop` and what requests something may be called from any."""

    def __init__(
        self,
        allocation: WorkerAllocation,
        reporter: Reporter,
        listener: Listener,
        settings: RunSettings,
        *,
        data_roots: tuple[Path, ...] | None = None,
        store: OpenStore | None = None,
        device: OpenDevice = open_device,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._allocation = allocation
        self._reporter = reporter
        self._clock = clock
        self._sets = OrderedSets(reporter.download)
        self._listener = listener
        # Whoever waits for another process waits for one that is silent too, for as long as it may be.
        wait_s = settings.wait_timeout_s + allocation.lost_after_s
        self._settings = settings.model_copy(update={"wait_timeout_s": wait_s})
        self._session_threads = settings.compute_threads if settings.kernels == "onnxruntime" else None
        self._data_roots = data_roots
        self._open_store = store or self._opened
        self._open_device = device
        self._signals = RunSignals()
        self._captures: Callable[[int | None], list[Capture]] | None = None
        """`captures_of` the run's store, once it has begun."""
        self._store_is_over = threading.Event()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._main, name=f"run-{allocation.id}", daemon=True)

    def start(self) -> None:
        """Begins. The listener is told everything else."""
        self._thread.start()

    def stop(self) -> None:
        """Has the run end at the next chance; its store is closed, which fails what waits for other slots.

        Only says so and returns: a run that cannot end holds up nobody but itself.
        """
        self._signals.stop.set()
        self._is_over.set()
        self._store_is_over.set()

    def request_upload(self) -> None:
        """Asks for the parameters at the next boundary of two steps."""
        self._signals.upload.set()

    def request_set(self, number: int) -> None:
        """Asks for ordered parameters to be set: their document is brought, and set at a boundary of two steps."""
        self._sets.request(number)

    def request_snapshot(self, step: int, folder: str, since: int | None = None) -> None:
        """Asks for all values that this process keeps, as they are after `step` steps, to be written to a folder; of
        tables what has changed since another step, if that is known. What becomes of it is reported."""

        def done(outcome: Captured | MissedError) -> None:
            if isinstance(outcome, MissedError):
                self._reporter.report(snapshot=SnapshotDone(step=step, error=str(outcome), missed=True))
            else:
                writing = partial(self._write, folder, step, outcome)
                threading.Thread(target=writing, name="write-snapshot").start()

        self._capture(step, since, done)

    def _capture(self, step: int, since: int | None, done: Callable[[Captured | MissedError], None]) -> None:
        """Captures all that this process keeps."""
        if self._captures is None:
            done(MissedError("the run has not begun"))
            return
        captures = self._captures(since)
        if not captures:
            done(Captured(list))
            return
        captured = all_captured(len(captures), done)
        for capture in captures:
            capture(step, captured)

    def _write(self, folder: str, step: int, held: Captured) -> None:
        name = f"worker-{self._allocation.slot}.safetensors"
        done = saved(folder, name, held, job=self._allocation.job, step=step)
        self._reporter.report(snapshot=SnapshotDone.model_validate(done))

    def _write_last(self) -> None:
        """Writes what there is after the last step, where this process alone has it: it goes with the process."""
        folder, step, outcome = self._allocation.last_snapshot, self._allocation.steps, Queue[Captured | MissedError]()
        if folder is None:
            return
        _await_place(folder)
        self._capture(step, None, outcome.put)
        try:
            held = outcome.get(timeout=self._settings.wait_timeout_s)
        except Empty:
            held = MissedError(f"the values of step {step} were not there within {self._settings.wait_timeout_s:g} s")
        if isinstance(held, MissedError):
            self._reporter.report(snapshot=SnapshotDone(step=step, error=str(held)))
        else:
            self._write(folder, step, held)

    def _check(self) -> None:
        """Raises StoppedError once the run is over."""
        if self._is_over.is_set():
            raise StoppedError("stopped in the middle of a loop of the graph")

    def join(self, timeout_s: float) -> bool:
        """Whether the thread has ended within `timeout_s`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _main(self) -> None:
        event, reason, lost = AllocationEvent.DONE, None, False
        try:
            with ExitStack() as stack:
                training = self._prepare(stack)
                self._listener.reached(AllocationEvent.RUNNING, None)
                training.run()
                self._write_last()
        except Exception as error:  # noqa: BLE001  # the outermost frame of a run: the error becomes its reason
            event, reason = AllocationEvent.FAILED, _message_of(error)
            lost = _is_loss(error)
            if isinstance(error, SnapshotError) and self._allocation.snapshot is not None:
                lost = True  # The job may begin with an earlier one.
                self._reporter.report(snapshot=SnapshotDone(step=self._allocation.snapshot.step, error=str(error)))
        if not self._signals.stop.is_set():
            self._listener.reached(event, reason, lost=lost)
        self._listener.ended()

    def _prepare(self, stack: ExitStack) -> Training:
        """Opens and binds everything; `stack` closes it, the store first."""
        task = task_of(self._allocation)
        device = self._open_device(self._settings.device)
        allowed, slot = self._allocation.allow_tf32, self._allocation.slot
        if not device.allow_tf32(allowed) and allowed and slot == 0:  # One worker says it for the job.
            self._warn(
                f"allow_tf32 has no effect on device {device.name!r} of slot 0, which computes products in float32: "
                "only GPUs of compute capability 8.0 and higher have TF32"
            )
        source = open_data(task, self._data_roots, self._warn)
        stack.callback(source.close)
        engine = self._engine(task, source, device)
        stack.callback(engine.close)
        # Before the engine is closed, which waits for its threads: a loop in the graph may go on for ever.
        stack.callback(self._is_over.set)
        stack.callback(self._sets.close)
        training = self._bound(task, source, engine, device, self._connect(task, device, stack))
        self._listener.reached(AllocationEvent.READY, None)
        return training

    def _warn(self, message: str) -> None:
        self._reporter.report(logs=[LogReport(level="warning", message=message)])

    def _bound(self, task: Task, source: Source, engine: Engine, device: Device, store: RunStore) -> Training:
        """Binds the programs to every size of batch that will come, so that errors show before the first step."""
        self._captures = partial(captures_of, store, task)
        inline = self._inline(task, engine, device, store)
        travels = not isinstance(inline, OwnValues) and self._settings.overlap
        binder = Binder(task.programs.train, device, session_threads=self._session_threads, travels=travels)
        reuse = isinstance(engine, SerialEngine)  # A step has ended there before the next one is read.
        feeder = Feeder(source, task.allocation.data.columns, task.programs.train.inputs, reuse=reuse)
        schedule = schedule_of(task, feeder.rows)
        for size in schedule.training_sizes():
            binder.plan(feeder.dims(size))
        capturing = device if self._settings.cuda_graphs and isinstance(device, CapturingDevice) else None
        kept, nothing = kept_on_device(store, device), task.contributions.nothing
        runtime = Runtime(engine, store, device, kept, inline, self._check, capturing, nothing)
        pusher = StepPusher(runtime, arena=self._settings.arena)
        reports = RunReports(self._reporter, self._clock, store.statistics)
        timeout_s = self._settings.wait_timeout_s
        return Training(
            task=task,
            schedule=schedule,
            steps=TrainingSteps.of(task, schedule, binder, feeder, pusher=pusher, reports=reports),
            engine=engine,
            store=store,
            evaluation=self._evaluation(task, source, schedule, runtime, pusher),
            checkpointer=Checkpointer(store, task.keys, task.kept_state, task.allocation.job, timeout_s),
            setter=ValueSetter(store, task.parameters, task.local.keys, timeout_s),
            sets=self._sets,
            reports=reports,
            signals=self._signals,
            settings=self._settings,
        )

    @staticmethod
    def _inline(task: Task, engine: Engine, device: Device, store: RunStore) -> InlineStore | None:
        """Communication on the thread that computes, where a step needs no other."""
        if isinstance(store, OwnStore):
            return OwnValues(store, engine.variable("own values"))
        if isinstance(store, ShardedStore) and _needs_one_pushpull(task, device):
            return SharedValues(store, engine.variable("shared values"))
        return None

    def _evaluation(
        self, task: Task, source: Source, schedule: Schedule, runtime: Runtime, pusher: StepPusher
    ) -> Evaluation | None:
        """The job's evaluation, if it has one, bound like the training."""
        allocation = task.allocation
        if allocation.data.evaluate is None:
            return None
        held_out = Feeder(source, allocation.data.columns, task.programs.evaluate.inputs)
        evaluate = Binder(task.programs.evaluate, runtime.device, session_threads=self._session_threads)
        for size in schedule.evaluation_sizes():
            evaluate.plan(held_out.dims(size))
        reads = AveragedStore(runtime.store, task.parameters) if allocation.evaluate_average else runtime.store
        timeout_s = self._settings.wait_timeout_s
        return Evaluation(
            binder=evaluate,
            feeder=held_out,
            schedule=schedule,
            engine=runtime.engine,
            pusher=pusher,
            device=runtime.device,
            seed=allocation.seed,
            timeout_s=timeout_s,
            reads=reads,
        )

    def _connect(self, task: Task, device: Device, stack: ExitStack) -> RunStore:
        """Opens the store, and has a thread close it: when the run ends, or earlier when it is stopped.

        The run's own thread may be waiting for the store just then, and whoever stops the run must not wait at all.
        """
        store = store_of(task, self._open_store, device)
        closer = threading.Thread(
            target=self._close_at_the_end, args=(store,), name=f"close-{self._allocation.id}", daemon=True
        )
        closer.start()
        stack.callback(self._await_closed, closer)
        return store

    def _opened(self, task: Task) -> Store | RunStore:
        return open_store(task, self._open_device(self._settings.device))

    def _close_at_the_end(self, store: RunStore) -> None:
        self._store_is_over.wait()
        store.close()

    def _await_closed(self, closer: threading.Thread) -> None:
        self._store_is_over.set()
        closer.join(CLOSE_TIMEOUT_S)
        if closer.is_alive():
            raise WorkerError(f"the store was not closed within {CLOSE_TIMEOUT_S:g} s")

    def _engine(self, task: Task, source: Source, device: Device) -> Engine:
        """One without threads where a step is one piece of work and a batch is read in no time: two threads that take
        turns of an interpreter cost a small step more than it computes."""
        lanes = {COMPUTE: 1, IO: self._settings.io_threads}
        here = (_has_own_values(task) and device.name == CPU) or _needs_one_pushpull(task, device)
        here = here and _batch_bytes(task, source) <= READ_AHEAD_BYTES
        if self._settings.serial or here:
            return SerialEngine(lanes, completion_timeout_s=self._settings.wait_timeout_s)
        return ThreadedEngine(lanes, name=f"slot{self._allocation.slot}")


def _message_of(error: Exception) -> str:
    """The error for people: those of this room say enough without their class."""
    return exhausted(error) or (
        str(error)
        if isinstance(error, (WorkerError, EngineError, SnapshotError))
        else f"{type(error).__name__}: {error}"
    )


def _is_loss(error: BaseException | None) -> bool:
    """Whether a shard, or a slot that a shard waits for, was lost: no doing of the job's."""
    while error is not None and not isinstance(error, StoreLostError):
        error = error.__cause__ or error.__context__
    return error is not None
