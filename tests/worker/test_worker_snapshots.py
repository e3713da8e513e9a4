"""A worker that keeps the values itself writes them at one step, and a run goes on from there with the same bits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from weft.api.agent import Snapshot, SnapshotDone
from weft.api.compression import CompressionSpec, StoreCompressionSpec
from weft.api.lifecycle import AllocationEvent
from weft.api.store import AverageSpec, CommitSpec, LossScalingSpec
from weft_graph.types import DType
from weft_kvstore.description.records import descriptions
from weft_kvstore.serving.shard_server import ShardServer
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.snapshot import Captured, MissedError, saved
from weft_kvstore.snapshot_files import MARKER_FILE, snapshots
from weft_worker.run import Run
from weft_worker.settings import RunSettings
from worker_graphs import bags, mlp, normalized
from worker_jobs import BAG_COLUMNS, WAIT_S, Clock, Job, Records, programs_of, run_all, run_of, save_bags, save_data

ROWS, STEPS = 120, 40
DONE = (AllocationEvent.DONE, None)
AHEAD = 5
"""Steps that a run may have done beyond the one that it told last."""
CASES: dict[str, dict[str, Any]] = {
    "momentum": {},
    "adam": {"rule": "adam", "hyper": {"lr": 0.01}},
    "averaged": {"average": AverageSpec(decay=0.9), "evaluate_average": True},
    "clipped": {"commit": CommitSpec(clip_norm=0.5)},
    "scaled": {"commit": CommitSpec(loss_scaling=LossScalingSpec(initial=1024.0, growth_interval=3))},
    "whole": {"whole": True, "rule": "lars", "hyper": {"lr": 0.1}},
}
TABLES: dict[str, dict[str, Any]] = {
    "table": {"rule": "adagrad", "hyper": {"lr": 0.1}},
    "standard table": {"lazy": False, "rule": "adam", "hyper": {"lr": 0.01}},
    "table, clipped": {"commit": CommitSpec(clip_norm=0.5)},
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path) -> Path:
    """Where the server keeps a job's snapshots."""
    (tmp_path / "job.json").write_text("{}")
    return tmp_path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return save_data(tmp_path / "samples.npz", ROWS + 30, "float32")


def job_of(data: Path, *, statistics: bool = False, lazy: bool | None = None, **options: Any) -> Job:
    """`lazy` says of a table how its rows are updated; None: there is none."""
    chosen: dict[str, Any] = {"rule": "momentum", "hyper": {"lr": 0.1, "momentum": 0.9}, "keep_state": True}
    graph = normalized(DType.FLOAT32) if statistics else mlp(DType.FLOAT32)
    if lazy is not None:
        graph = bags(DType.FLOAT32, lazy_update=lazy)
        chosen["columns"] = BAG_COLUMNS
    chosen |= {"steps": STEPS, "train": (0, ROWS), "batch": 50, "evaluate": (ROWS, ROWS + 30), "evaluate_every": 3}
    return Job(programs_of(graph), data, **{**chosen, **options})


def snapshot_of(job: Job, folder: Path, told_step: int) -> tuple[Snapshot, Records]:
    """A snapshot that is asked for once the run has told a step, and the records of the whole run."""
    records = Records()
    run = run_of(job, 0, records)
    asked = told_step + AHEAD
    records.on_step = lambda step: run.request_snapshot(asked, str(folder)) if step == told_step else None
    run.start()
    done = records.snapshots.get(timeout=WAIT_S)
    assert (done.error, done.step) == (None, asked)
    assert records.over.wait(WAIT_S)
    assert records.last == DONE
    assert done.file is not None
    assert (folder / done.file.name).stat().st_size == done.file.nbytes
    scale = {"loss_scale": done.loss_scale, "finite_steps": done.finite_steps}
    return Snapshot(step=asked, folder=str(folder), files=[done.file], **scale), records


@pytest.mark.parametrize(
    "options", [*CASES.values(), {"statistics": True}, *TABLES.values()], ids=[*CASES, "statistics", *TABLES]
)
@pytest.mark.parametrize("told_step", [4, 10])
def test_a_run_that_goes_on_from_a_snapshot_tells_and_brings_the_same(
    data: Path, tmp_path: Path, options: dict[str, Any], told_step: int
) -> None:
    if options in TABLES.values():
        data, options = save_bags(tmp_path / "bags.npz", ROWS + 30), {"lazy": True, **options}
    job = job_of(data, **options)
    snapshot, whole = snapshot_of(job, tmp_path / "snapshot", told_step)
    (rest,) = run_all(replace(job, snapshot=snapshot))
    assert rest.last == DONE
    assert rest.uploads[-1] == whole.uploads[-1]
    metrics = {(each.split, each.step): each.sums for each in whole.metrics}
    later = {(each.split, each.step): each.sums for each in rest.metrics}
    beyond = min(step for split, step in metrics if split == "train" and step > snapshot.step)
    assert {place: sums for place, sums in metrics.items() if place[1] > beyond} == {
        place: sums for place, sums in later.items() if place[1] > beyond
    }
    assert min(rest.steps) > snapshot.step


class Sharded:
    """A job over shards of this process, of which a snapshot can be taken as the server has it taken."""

    def __init__(self, job: Job, shards: int, stack: ExitStack) -> None:
        self.servers = [stack.enter_context(ShardServer(settings=LinkSettings(same_host=False))) for _ in range(shards)]
        self.job = replace(job, shards=tuple(server.endpoint for server in self.servers))
        description = descriptions.from_builtins(self.job.store_spec().model_dump(mode="json"))
        found = None if job.snapshot is None else snapshots.from_builtins(job.snapshot.model_dump())
        for number, server in enumerate(self.servers):
            server.open(description, number, snapshot=found)
        self.records = [Records() for _ in range(job.slots)]
        self.runs = [run_of(self.job, slot, records) for slot, records in enumerate(self.records)]

    def trained(self) -> bytes:
        for run in self.runs:
            run.start()
        for run, records in zip(self.runs, self.records, strict=True):
            assert records.over.wait(WAIT_S)
            assert run.join(WAIT_S)
            assert records.last == DONE
        return self.records[self.job.keeper].uploads[-1][0]

    def request(self, step: int, folder: Path, told: SimpleQueue[SnapshotDone]) -> None:
        """Has all processes write what they hold at a step."""

        def write(name: str, held: Captured) -> None:
            told.put(SnapshotDone.model_validate(saved(str(folder), name, held, job="job-1", step=step)))

        def captured(number: int) -> Callable[[Captured | MissedError], None]:
            def begin(held: Captured | MissedError) -> None:
                assert isinstance(held, Captured), held
                threading.Thread(target=write, args=(f"shard-{number}.safetensors", held)).start()

            return begin

        for number, server in enumerate(self.servers):
            server.capture(step, captured(number))
        for run in self.runs:
            run.request_snapshot(step, str(folder))


TWO_BIT = CompressionSpec(kind="2bit", threshold=0.02)
SHARDED: dict[str, dict[str, Any]] = {
    "workers update, table": {"local": True, "lazy": False, "rule": "adam", "hyper": {"lr": 0.01}},
    "2bit, table": {
        "lazy": True,
        "rule": "adagrad",
        "hyper": {"lr": 0.1},
        "compression": StoreCompressionSpec(gradients=TWO_BIT, least_bytes=0),
    },
    "2bit both ways": {
        "local": True,
        "compression": StoreCompressionSpec(gradients=TWO_BIT, merged=TWO_BIT, least_bytes=0),
    },
    "2bit, scaled": {
        "compression": StoreCompressionSpec(gradients=TWO_BIT, least_bytes=0),
        "commit": CommitSpec(loss_scaling=LossScalingSpec(initial=1024.0, growth_interval=3)),
    },
}


@pytest.mark.parametrize("case", SHARDED)
def test_a_job_over_shards_goes_on_from_a_snapshot_on_another_number_of_them(tmp_path: Path, case: str) -> None:
    options = SHARDED[case]
    data = (
        save_bags(tmp_path / "data.npz", ROWS + 30)
        if "lazy" in options
        else save_data(tmp_path / "data.npz", ROWS + 30, "float32")
    )
    job, step = job_of(data, **{"slots": 2, **options}), 17
    with ExitStack() as stack:
        whole = Sharded(job, 2, stack)
        told: SimpleQueue[SnapshotDone] = SimpleQueue()

        def on_step(at: int) -> None:
            if at == 10:
                whole.request(step, tmp_path / "snapshot", told)

        whole.records[0].on_step = on_step
        expected = whole.trained()
        done = [told.get(timeout=WAIT_S) for _ in whole.servers]
        done += [records.snapshots.get(timeout=WAIT_S) for records in whole.records]
    assert [each.error for each in done] == [None] * len(done)
    files = [each.file for each in done if each.file is not None]
    snapshot = Snapshot(step=step, folder=str(tmp_path / "snapshot"), files=files)
    with ExitStack() as stack:
        assert Sharded(replace(job, snapshot=snapshot), 3, stack).trained() == expected


def test_a_step_that_has_passed_is_told_as_missed(data: Path, tmp_path: Path) -> None:
    for options in (CASES["momentum"], CASES["clipped"]):
        records = Records()
        run = run_of(job_of(data, **options), 0, records)
        run.request_snapshot(3, str(tmp_path))  # The run has not begun.
        assert records.snapshots.get(timeout=WAIT_S).missed
        records.on_step = lambda step, run=run: run.request_snapshot(0, str(tmp_path)) if step == 9 else None  # type: ignore[misc]
        run.start()
        done = records.snapshots.get(timeout=WAIT_S)
        assert (done.missed, "already" in (done.error or "")) == (True, True)
        assert records.over.wait(WAIT_S)
        assert records.last == DONE


def test_a_place_that_cannot_be_written_ends_no_run(data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    records = Records()
    run = run_of(job_of(data), 0, records)
    records.on_step = lambda step: run.request_snapshot(10, str(tmp_path / "file")) if step == 1 else None
    run.start()
    done = records.snapshots.get(timeout=WAIT_S)
    assert (done.missed, "worker-0.safetensors cannot be written" in (done.error or "")) == (False, True)
    assert records.over.wait(WAIT_S)
    assert records.last == DONE


def test_nothing_is_written_where_the_server_has_made_no_place(data: Path, tmp_path: Path) -> None:
    records = Records()
    run = run_of(job_of(data), 0, records)
    elsewhere = tmp_path / "elsewhere" / "snapshot"
    records.on_step = lambda step: run.request_snapshot(10, str(elsewhere)) if step == 1 else None
    run.start()
    done = records.snapshots.get(timeout=WAIT_S)
    assert "job.json is not there: the server and its agents have to reach the same place" in (done.error or "")
    assert not elsewhere.parent.exists()
    assert records.over.wait(WAIT_S)


def test_a_job_that_is_done_before_the_place_of_its_snapshots_is_made_waits_for_it(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, records, folder = job_of(data), Records(), tmp_path / "job" / "10-1"

    def make_place(seconds: float) -> None:
        folder.parent.mkdir(exist_ok=True)
        (folder.parent / MARKER_FILE).write_text("{}")

    monkeypatch.setattr("weft_worker.run.time.sleep", make_place)
    allocation = job.allocation(0).model_copy(update={"last_snapshot": str(folder)})
    run = Run(allocation, records, records, RunSettings(), clock=Clock())
    run.start()
    done = records.snapshots.get(timeout=WAIT_S)
    assert (done.step, done.error) == (job.steps, None)
    assert records.over.wait(WAIT_S)


def test_a_run_whose_snapshot_cannot_be_read_says_so_and_that_another_may_do(data: Path, tmp_path: Path) -> None:
    job = job_of(data)
    snapshot, _ = snapshot_of(job, tmp_path / "snapshot", 4)
    path = tmp_path / "snapshot" / "worker-0.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    (records,) = run_all(replace(job, snapshot=snapshot))
    done = records.snapshots.get(timeout=WAIT_S)
    assert (done.step, "its SHA-256 is another" in (done.error or "")) == (snapshot.step, True)
    assert records.last is not None
    assert records.last[0] is AllocationEvent.FAILED
