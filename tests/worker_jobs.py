"""Jobs for the worker's tests: data, allocations, and slots that run side by side in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from typing import Any, BinaryIO

import numpy as np

from weft.agent.transfer import Document, DownloadError
from weft.api.agent import LogReport, MetricReport, SetDone, Snapshot, SnapshotDone, WorkerAllocation
from weft.api.compression import StoreCompressionSpec
from weft.api.data import DataSpec, NumpySource, Rows
from weft.api.job import Traffic
from weft.api.lifecycle import AllocationEvent
from weft.api.store import AverageSpec, CommitSpec, InitializerSpec, KeySpec, StoreSpec
from weft_graph.convert import convert
from weft_graph.ir import Graph
from weft_graph.passes.draft import Options
from weft_graph.program import KeyPlan, Programs, Update
from weft_graph.program_json import programs_to_json
from weft_kvstore.client.store_client import Store
from weft_worker.run import Run
from weft_worker.run_store import RunStore
from weft_worker.settings import RunSettings
from weft_worker.task import Task
from worker_graphs import BAG, CLASSES, FEATURES, METRICS, VOCABULARY

WAIT_S = 60.0
"""Deadline of a whole run in these tests: far above what any takes."""


def save_data(path: Path, rows: int, dtype: str = "float64") -> Path:
    """Writes a `.npz` of `rows` samples: x is drawn, y follows from x, so that there is something to learn."""
    draw = np.random.default_rng(3)
    x = draw.normal(size=(rows, FEATURES))
    y = np.argmax(x @ draw.normal(size=(FEATURES, CLASSES)), axis=1)
    np.savez(path, x=x.astype(dtype), y=y.astype(np.int64))
    return path


def save_bags(path: Path, rows: int, vocabulary: int = VOCABULARY) -> Path:
    """Writes a `.npz` of `rows` bags of ids, some of them several times in a bag; y follows from the ids."""
    draw = np.random.default_rng(4)
    ids = draw.integers(0, vocabulary, size=(rows, BAG)) * draw.integers(0, 2, size=(rows, BAG))
    np.savez(path, ids=ids, y=(ids.sum(axis=1) % CLASSES).astype(np.int64))
    return path


BAG_COLUMNS = {"ids": "ids", "labels": "y"}


def programs_of(graph: Graph, metrics: Mapping[str, str] = METRICS, options: Options | None = None) -> Programs:
    return convert(graph, loss="loss", metrics=metrics, options=options)


@dataclass(frozen=True)
class Job:
    """A job as the server would describe it to its slots."""

    programs: Programs
    data: Path
    steps: int
    train: tuple[int, int]
    slots: int = 1
    batch: int = 64
    evaluate: tuple[int, int] | None = None
    evaluate_every: int | None = None
    seed: int = 11
    lr: float = 0.1
    shards: tuple[str, ...] = ()
    keeper: int = 0
    rule: str | dict[str, Any] = "sgd"
    hyper: Mapping[str, Any] | None = None
    """The rule's numbers; plain descent at `lr` where left out."""
    mode: str = "sync"
    local: bool = False
    """Whether the workers update dense keys themselves."""
    given: tuple[str, ...] = ()
    keep_state: bool = False
    whole: bool = False
    """Whether the rule needs keys that are not cut."""
    commit: CommitSpec | None = None
    accumulate: int = 1
    average: AverageSpec | None = None
    compression: StoreCompressionSpec | None = None
    evaluate_average: bool = False
    slice_bytes: int = 256
    columns: Mapping[str, str] = field(default_factory=lambda: {"x": "x", "labels": "y"})
    snapshot: Snapshot | None = None
    """What the job goes on from."""
    content: str = ""
    allow_tf32: bool = False

    def allocation(self, slot: int) -> WorkerAllocation:
        evaluate = self.evaluate
        return WorkerAllocation(
            id=f"allocation-{slot}",
            term=1,
            incarnation=1,
            job="job-1",
            slot=slot,
            programs=programs_to_json(self.programs),
            data=DataSpec(
                source=NumpySource(path=str(self.data)),
                columns=dict(self.columns),
                train=Rows(start=self.train[0], stop=self.train[1]),
                evaluate=None if evaluate is None else Rows(start=evaluate[0], stop=evaluate[1]),
                batch_size=self.batch,
            ),
            seed=self.seed,
            steps=self.steps,
            evaluate_every=self.evaluate_every,
            keeper=slot == self.keeper,
            store=self.store_spec(),
            given=list(self.given),
            accumulate=self.accumulate,
            evaluate_average=self.evaluate_average,
            keep_state=self.keep_state,
            snapshot=self.snapshot,
            content=self.content,
            allow_tf32=self.allow_tf32,
        )

    def store_spec(self) -> StoreSpec:
        return StoreSpec(
            job="job-1",
            term=1,
            seed=self.seed,
            slots=self.slots,
            shards=list(self.shards),
            keys=[key for plan in self.programs.keys for key in self._keys(plan)],
            rule=self.rule,
            hyper={"lr": self.lr, "weight_decay": 0.0} if self.hyper is None else dict(self.hyper),
            slice_bytes=self.slice_bytes,
            merge="slot",
            mode=self.mode,
            commit=self.commit,
            average=self.average,
            compression=self.compression,
        )

    def _keys(self, plan: KeyPlan) -> list[KeySpec]:
        """As the server's plan has them: where workers update, a key stands beside the one of its gradient."""
        initializer = InitializerSpec(op_type=plan.initializer.op_type, attributes=dict(plan.initializer.attributes))
        key = KeySpec(
            key=plan.key,
            dtype=plan.type.dtype.value,
            shape=list(plan.type.static_shape),
            initializer=InitializerSpec(op_type="Given", attributes={}) if plan.key in self.given else initializer,
            update=plan.update.value,
            priority=plan.priority,
            slots=[] if plan.rows and plan.update is not Update.RULE else list(range(self.slots)),
            rows=plan.rows,
            whole=self.whole,
            sparse="lazy" if plan.lazy_update or not plan.rows else "standard",
        )
        if not self.local or plan.rows or plan.update is not Update.RULE:
            return [key]
        zero = InitializerSpec(op_type="ConstantOfShape", attributes={"value": 0.0})
        gradient = {"key": f"{plan.key}/grad", "update": "gradient", "initializer": zero}
        return [key.model_copy(update={"slots": []}), key.model_copy(update=gradient)]


@dataclass
class Records:
    """What one slot told: a reporter and a listener that keep everything."""

    events: list[tuple[AllocationEvent, str | None]] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    metrics: list[MetricReport] = field(default_factory=list)
    logs: list[LogReport] = field(default_factory=list)
    uploads: list[tuple[bytes, int, bool]] = field(default_factory=list)
    traffic: list[Traffic] = field(default_factory=list)
    sets: list[SetDone] = field(default_factory=list)
    snapshots: Queue[SnapshotDone] = field(default_factory=Queue)
    documents: dict[str, bytes] = field(default_factory=dict)
    """What the server has for this slot: `given`, `sets/1`."""
    over: threading.Event = field(default_factory=threading.Event)
    on_step: Callable[[int], None] = field(default=lambda step: None)
    on_upload: Callable[[], None] = field(default=lambda: None)

    def report(  # type: ignore[no-untyped-def]
        self,
        *,
        event=None,
        reason=None,
        step=None,
        metrics=(),
        logs=(),
        traffic=None,
        sets=(),
        snapshot=None,
        trace=None,
    ) -> None:
        self.metrics += metrics
        self.logs += logs
        self.sets += sets
        if snapshot is not None:
            self.snapshots.put(snapshot)
        if traffic is not None:
            self.traffic.append(traffic)
        if step is not None:
            self.steps.append(step)
            self.on_step(step)

    def upload(self, document: Document, step: int, final: bool) -> None:
        self.on_upload()
        whole = b"".join(document.pieces())
        assert len(whole) == document.size
        self.uploads.append((whole, step, final))

    def download(self, what: str, into: BinaryIO, stop: threading.Event) -> None:
        if what not in self.documents:
            raise DownloadError(f"{what}: there is none")
        into.write(self.documents[what])
        into.flush()

    def reached(self, event: AllocationEvent, reason: str | None, *, lost: bool = False) -> None:
        self.events.append((event, reason))

    def ended(self) -> None:
        self.over.set()

    @property
    def last(self) -> tuple[AllocationEvent, str | None]:
        return self.events[-1]


class Clock:
    """A clock that moves on by a second at each look, so that every step is told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def run_of(
    job: Job, slot: int, records: Records, store: Callable[[Task], Store | RunStore] | None = None, **settings: object
) -> Run:
    """The slot's run, not started."""
    options = {} if store is None else {"store": store}
    return Run(job.allocation(slot), records, records, RunSettings(**settings), clock=Clock(), **options)  # type: ignore[arg-type]


def run_all(
    job: Job,
    stores: Callable[[int], Store | RunStore] | None = None,
    *,
    slots: Iterable[int] | None = None,
    documents: Mapping[str, bytes] | None = None,
    **settings: object,
) -> list[Records]:
    """Runs the slots side by side to their ends. The server has `documents` for the keeper."""
    everything = []
    for slot in range(job.slots) if slots is None else slots:
        records = Records(documents=dict(documents or {}) if slot == job.keeper else {})
        opened = None if stores is None else (lambda task, slot=slot: stores(slot))
        everything.append((run_of(job, slot, records, opened, **settings), records))
    for run, _ in everything:
        run.start()
    for run, records in everything:
        assert records.over.wait(WAIT_S), f"a run has not ended: {[told.events for _, told in everything]}"
        assert run.join(WAIT_S)
    return [records for _, records in everything]
