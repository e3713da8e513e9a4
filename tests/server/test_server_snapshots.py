"""Snapshots of jobs: ordered of one step, kept once whole, and what a job goes on from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from server_control import World
from server_specs import plan
from weft.api.agent import AgentKind, MetricReport, SetDone, Snapshot, SnapshotDone, SnapshotFile, WorkerAllocation
from weft.api.event import StateChanged
from weft.api.job import StopWhen
from weft.api.lifecycle import AllocationEvent, JobState
from weft_server.control.limits import Limits
from weft_server.control.memory import Scaling
from weft_server.control.snapshots import AHEAD_S, KEPT, WAIT_S
from weft_server.planning.plan import Given, JobPlan
from weft_server.refusals import WrongStateError
from weft_server.storage.snapshot_files import SnapshotIncompleteError, complete, tidy

WORKER, SHARD = AgentKind.WORKER, AgentKind.SHARD
EVERY_S = 10.0
STEPS = 100_000


@pytest.fixture
def world() -> World:
    return World(Limits(snapshots="/snapshots", suspected_after_s=1e6, lost_after_s=1e6))


def long(**changes: Any) -> JobPlan:
    return plan(**{"shards": 2, "steps": STEPS, "max_restarts": 3, "snapshot_every_s": EVERY_S, **changes})


def run(world: World, job_plan: JobPlan | None = None) -> None:
    job_plan = job_plan or long()
    world.agents(workers=job_plan.workers, shards=job_plan.shards)
    world.submit(job_plan)
    world.bring_to(JobState.RUNNING)


def ordered(world: World) -> dict[str, tuple[int, str]]:
    """By agent's name: what it is to write, and where."""
    run = world.controller.run_of("job")
    assert run is not None
    found = {}
    for lease in run.leases.by_id.values():
        for order in world.orders(lease.agent).snapshots:
            assert order.allocation == lease.id
            found[lease.agent_name] = (order.step, order.folder)
    return found


def due(world: World, *, at: int) -> tuple[int, str]:
    """Has the workers come to a step, and the interval pass: (step, folder) that all shards are to write."""
    world.all_report(WORKER, None, step=at)  # type: ignore[arg-type]
    world.tick(EVERY_S + 0.2)
    (found,) = set(ordered(world).values())
    return found


def written(shard: int, step: int) -> SnapshotDone:
    file = SnapshotFile(name=f"shard-{shard}.safetensors", nbytes=8, sha256="0" * 64)
    return SnapshotDone(step=step, file=file, loss_scale=1024.0, finite_steps=7)


def take(world: World, *, at: int) -> Snapshot:
    """A whole snapshot, with workers that are at a step; it is not looked at yet."""
    step, _ = due(world, at=at)
    for shard in range(2):
        world.report(world.lease(SHARD, shard), snapshot=written(shard, step))
    world.all_report(WORKER, None, step=step)  # type: ignore[arg-type]
    world.tick()
    return world.to_check[-1].snapshot


def keep(world: World, *, at: int) -> Snapshot:
    snapshot = take(world, at=at)
    checked(world, snapshot)
    return snapshot


def checked(world: World, snapshot: Snapshot, error: str | None = None) -> None:
    world.carry_out(world.controller.snapshot_checked("job", snapshot.step, error, world.now))


def lose(world: World, kind: AgentKind = SHARD) -> None:
    world.report(world.lease(kind, 0), AllocationEvent.FAILED, reason="killed", lost=True)


def test_all_shards_are_told_of_a_step_that_nobody_has_reached_where_metrics_are_told(world: World) -> None:
    run(world)
    assert ordered(world) == {}
    step, folder = due(world, at=500)
    assert (step > 500, step % 100) == (True, 0)  # A run of 100,000 steps tells metrics each 100.
    assert folder.startswith("/snapshots/job/")
    assert sorted(ordered(world)) == ["shard-0", "shard-1"]


def test_a_snapshot_is_looked_at_once_all_files_are_there_and_the_last_worker_has_told_its_metrics(
    world: World,
) -> None:
    run(world)
    step, folder = due(world, at=500)
    world.report(world.lease(SHARD, 0), snapshot=written(0, step))
    assert sorted(ordered(world)) == ["shard-1"]
    world.report(world.lease(SHARD, 1), snapshot=written(1, step))
    world.report(world.lease(WORKER, 0), step=step)
    world.tick()
    assert not world.to_check
    world.report(world.lease(WORKER, 1), step=step)
    world.tick()
    (asked,) = world.to_check
    assert asked.snapshot.step == step
    assert asked.snapshot.folder == folder
    assert [file.name for file in asked.snapshot.files] == ["shard-0.safetensors", "shard-1.safetensors"]
    assert (asked.snapshot.loss_scale, asked.snapshot.finite_steps) == (1024.0, 7)
    assert world.jobs["job"].snapshot is None
    checked(world, asked.snapshot)
    assert world.jobs["job"].snapshot == step


def test_a_job_goes_on_from_its_newest_snapshot(world: World) -> None:
    run(world)
    world.agent(WORKER, "worker-2")
    snapshot = keep(world, at=500)
    world.all_report(WORKER, None, step=snapshot.step + 40)  # type: ignore[arg-type]
    lose(world)
    told = [world.orders(world.lease(SHARD, shard).agent).allocations[0] for shard in range(2)]
    assert [allocation.snapshot for allocation in told] == [snapshot, snapshot]
    world.all_report(SHARD, AllocationEvent.READY)
    (allocation,) = world.orders(world.lease(WORKER, 1).agent).allocations
    assert allocation.snapshot == snapshot
    assert [world.lease(WORKER, slot).step for slot in range(2)] == [snapshot.step] * 2
    assert (
        f"the job goes on from step {snapshot.step}: 40 steps are done again; it can recover 2 more times"
        in world.said()
    )


def test_a_job_with_a_table_says_why_steps_are_done_again_where_a_worker_is_lost(world: World) -> None:
    table = long().keys[0].model_copy(update={"key": "words", "rows": True})
    run(world, long(keys=[*long().keys, table]))
    world.all_report(WORKER, None, step=40)  # type: ignore[arg-type]
    lose(world, WORKER)
    told = "40 steps are done again, as 'words' is a table; snapshot_every_s bounds how many; it can recover 2 more"
    assert f"the job begins again with step 0: {told} times" in world.said()


def test_values_that_were_given_are_not_set_again_where_a_job_goes_on(world: World) -> None:
    run(world, long(given=Given(names=["w"], file="f")))
    assert world.orders(world.lease(WORKER, 0).agent).allocations[0].given == ["w"]
    keep(world, at=500)
    lose(world)
    world.all_report(SHARD, AllocationEvent.READY)
    (allocation,) = world.orders(world.lease(WORKER, 0).agent).allocations
    assert (allocation.given, allocation.store.keys[0].initializer.op_type) == ([], "ConstantOfShape")


def finish(world: World) -> tuple[int, str]:
    """Has a job come to its last step, with its result at the server: (step, folder) of its last snapshot."""
    world.all_report(WORKER, AllocationEvent.DONE, step=STEPS)
    world.keep()
    assert world.jobs["job"].state is JobState.FINISHING
    (last,) = set(ordered(world).values())
    return last


def test_the_last_are_kept_and_that_of_the_last_step_once_a_job_has_succeeded(world: World) -> None:
    run(world)
    folders = [keep(world, at=at).folder for at in (500, 1500, 2500)]
    assert world.in_use["job"] == tuple(folders[-KEPT:])
    due(world, at=3500)  # One that is under way goes.
    step, folder = finish(world)
    assert step == STEPS
    world.report(world.lease(SHARD, 0), snapshot=written(0, STEPS))
    assert sorted(ordered(world)) == ["shard-1"]
    world.report(world.lease(SHARD, 1), snapshot=written(1, STEPS))
    world.to_check.clear()
    world.begin_again(job_plan=long())  # What is there is not forgotten.
    last = world.to_check[-1].snapshot
    assert (last.step, last.folder, len(last.files)) == (STEPS, folder, 2)
    checked(world, last)
    assert (world.jobs["job"].state, world.jobs["job"].snapshot) == (JobState.SUCCEEDED, STEPS)
    assert world.in_use["job"] == (folder,)


@pytest.mark.parametrize("how", ["fails", "is silent", "dies", "cannot be used"])
def test_a_job_succeeds_also_where_its_last_snapshot_does_not_come(world: World, how: str) -> None:
    run(world)
    before = keep(world, at=500)
    finish(world)
    world.report(world.lease(SHARD, 0), snapshot=written(0, STEPS))
    match how:
        case "fails":
            world.report(world.lease(SHARD, 1), snapshot=SnapshotDone(step=STEPS, error="no space left"))
        case "is silent":
            world.tick(WAIT_S + 1)
        case "dies":
            world.report(world.lease(SHARD, 1), AllocationEvent.FAILED, reason="killed", lost=True)
        case _:
            world.report(world.lease(SHARD, 1), snapshot=written(1, STEPS))
            checked(world, world.to_check[-1].snapshot, "it has 7 bytes of 8")
    job = world.jobs["job"]
    assert (job.state, job.snapshot, job.restarts) == (JobState.SUCCEEDED, before.step, 0)
    assert f"no snapshot of the last step, {STEPS}, was kept" in world.said()[-1]
    assert f"the newest is that of step {before.step}" in world.said()[-1]
    assert world.in_use["job"] == (before.folder,)


@pytest.mark.parametrize("end", ["fail", "cancel"])
def test_a_job_that_ends_otherwise_keeps_its_last(world: World, end: str) -> None:
    run(world)
    folders = [keep(world, at=at).folder for at in (500, 1500)]
    due(world, at=2500)  # One that is under way.
    if end == "cancel":
        world.carry_out(world.controller.cancel("job", "by alice", world.now))
    else:
        world.report(world.lease(WORKER, 0), AllocationEvent.FAILED, reason="labels out of range")
    assert world.in_use["job"] == (folders[-1],)


def test_a_step_that_was_missed_is_followed_by_one_that_is_further_ahead(world: World) -> None:
    run(world)
    step, _ = due(world, at=500)
    missed = SnapshotDone(step=step, error="w is at version 900 already", missed=True)
    world.report(world.lease(SHARD, 0), snapshot=missed)
    assert (ordered(world), world.in_use["job"]) == ({}, ())
    world.all_report(WORKER, None, step=900)  # type: ignore[arg-type]
    world.tick(3 * AHEAD_S)
    ((again, _),) = set(ordered(world).values())
    assert again - 900 > step - 500
    world.report(world.lease(SHARD, 1), snapshot=written(1, step))  # Of the one that was given up.
    assert sorted(ordered(world)) == ["shard-0", "shard-1"]
    assert not [said for said in world.said() if "snapshot" in said]


def test_trouble_is_told_once_and_so_is_its_end(world: World) -> None:
    run(world)
    for at in (500, 1500):
        step, _ = due(world, at=at)
        world.report(world.lease(SHARD, 0), snapshot=SnapshotDone(step=step, error="no space left"))
        assert ordered(world) == {}
    snapshot = take(world, at=2500)
    checked(world, snapshot, "shard-0.safetensors is not there")
    keep(world, at=3500)
    told = [said for said in world.said() if "snapshot" in said]
    assert len(told) == 3
    assert "shard-0 (shard 0): no space left; it is tried again" in told[0]
    assert f"no snapshot of step {snapshot.step} was kept: shard-0.safetensors is not there" in told[1]
    assert told[2].startswith("snapshots are kept again")


def test_the_snapshot_that_a_job_is_to_stop_at_is_tried_again_at_once(world: World) -> None:
    """Its place may have been deleted: it is made again as the first try fails."""
    run(world)
    world.carry_out(world.controller.stop("job", "by a client", world.now))
    for _ in range(2):
        world.tick()
        ((step, _),) = set(ordered(world).values())
        lacking = SnapshotDone(step=step, error="job.json is not there")
        world.report(world.lease(SHARD, 0), snapshot=lacking)
    world.tick()
    assert ordered(world) == {}, "it waits for the interval then"


def test_a_shard_that_does_not_write_is_named_and_the_job_runs_on(world: World) -> None:
    run(world)
    step, _ = due(world, at=500)
    world.report(world.lease(SHARD, 0), snapshot=written(0, step))
    world.all_report(WORKER, None, step=step + 100)  # type: ignore[arg-type]
    world.tick(WAIT_S + 0.4)
    assert "shard-1 (shard 1) did not write it within 60 s" in world.said()[-1]
    assert world.jobs["job"].state is JobState.RUNNING
    keep(world, at=step + 1000)


def test_a_snapshot_that_cannot_be_read_gives_way_to_the_one_before(world: World) -> None:
    run(world)
    first, second = keep(world, at=500), keep(world, at=1500)
    lose(world)
    broken = SnapshotDone(step=second.step, error="its SHA-256 is another")
    world.report(world.lease(SHARD, 1), AllocationEvent.FAILED, reason="cannot", lost=True, snapshot=broken)
    assert world.orders(world.lease(SHARD, 0).agent).allocations[0].snapshot == first
    assert any(f"the snapshot of step {second.step} cannot be used: its SHA-256 is another" in s for s in world.said())
    assert world.jobs["job"].restarts == 2
    world.bring_to(JobState.RUNNING)
    assert world.in_use["job"] == (second.folder, first.folder), "its place may only have been away"
    third = keep(world, at=2500)
    assert world.in_use["job"] == (first.folder, third.folder)


def test_a_job_whose_values_were_set_goes_on_from_a_snapshot_that_came_later(world: World) -> None:
    run(world)
    before = keep(world, at=500)
    _, instructions = world.controller.ask_set("job", Given(names=["w"], file="f"), world.now)
    world.carry_out(instructions)
    world.report(world.lease(WORKER, 0), sets=[SetDone(number=1, step=before.step + 5)])
    after = keep(world, at=1500)
    lose(world)
    assert world.orders(world.lease(SHARD, 0).agent).allocations[0].snapshot == after


def test_a_job_whose_values_were_set_since_its_newest_snapshot_fails(world: World) -> None:
    run(world)
    before = keep(world, at=500)
    _, instructions = world.controller.ask_set("job", Given(names=["w"], file="f"), world.now)
    world.carry_out(instructions)
    world.report(world.lease(WORKER, 0), sets=[SetDone(number=1, step=before.step + 5)])
    lose(world)
    assert "were set while it ran, and no snapshot was taken since" in (world.jobs["job"].reason or "")


def test_a_server_that_starts_again_knows_the_snapshots_and_drops_the_one_under_way(world: World) -> None:
    run(world)
    snapshot = keep(world, at=500)
    lose(world)
    world.begin_again(job_plan=long())
    assert world.jobs["job"].state is JobState.RECOVERING  # Its agents are gone.
    world.agents(shards=2)
    assert world.orders(world.lease(SHARD, 0).agent).allocations[0].snapshot == snapshot
    world.bring_to(JobState.RUNNING)
    step, _ = due(world, at=1500)
    world.begin_again(job_plan=long())
    world.agents(shards=2)
    world.bring_to(JobState.RUNNING)
    world.report(world.lease(SHARD, 0), snapshot=written(0, step))
    assert world.in_use["job"] == (snapshot.folder,)


@pytest.mark.parametrize("changes", [{"mode": "async"}, {"snapshot_every_s": None}, {"steps": 502}], ids=str)
def test_jobs_that_could_not_go_on_exactly_take_none_and_neither_do_those_at_their_end(
    world: World, changes: dict[str, Any]
) -> None:
    run(world, JobPlan.model_validate({**long().model_dump(), **changes}))
    world.all_report(WORKER, None, step=500)  # type: ignore[arg-type]
    world.tick(3 * EVERY_S)
    assert ordered(world) == {}


@pytest.mark.parametrize(
    ("changes", "writing"),
    [
        ({}, []),
        ({"compression": {"gradients": {"kind": "2bit", "threshold": 0.1}}}, [0, 1]),
        ({"update": "workers"}, [0]),
    ],
    ids=str,
)
def test_a_worker_that_alone_holds_something_is_told_where_to_write_it_before_it_is_done(
    world: World, changes: dict[str, Any], writing: list[int]
) -> None:
    run(world, JobPlan.model_validate({**long().model_dump(), **changes}))
    told = [world.orders(world.lease(WORKER, slot).agent).allocations[0] for slot in range(2)]
    folders = [each.last_snapshot for each in told if isinstance(each, WorkerAllocation)]
    assert [slot for slot, folder in enumerate(folders) if folder is not None] == writing


def test_a_worker_without_shards_writes_its_own_the_last_one_before_it_is_done(world: World) -> None:
    run(world, long(workers=1, shards=0))
    worker = world.lease(WORKER, 0)
    (allocation,) = world.orders(worker.agent).allocations
    assert allocation.last_snapshot == f"/snapshots/job/{STEPS}-{worker.term}"
    world.report(worker, step=500)
    world.tick(EVERY_S + 0.2)
    assert sorted(ordered(world)) == ["worker-0"]
    world.keep()
    world.report(worker, snapshot=written(0, STEPS))
    world.report(worker, AllocationEvent.DONE, step=STEPS)
    world.tick()
    checked(world, world.to_check[-1].snapshot)
    assert (world.jobs["job"].state, world.jobs["job"].snapshot) == (JobState.SUCCEEDED, STEPS)
    assert world.in_use["job"] == (allocation.last_snapshot,)


def test_an_earlier_snapshot_that_cannot_be_used_does_not_take_that_of_the_last_step_along(world: World) -> None:
    run(world)
    earlier = take(world, at=500)
    world.all_report(WORKER, AllocationEvent.DONE, step=STEPS)
    world.keep()
    assert (world.jobs["job"].state, ordered(world)) == (JobState.FINISHING, {})
    checked(world, earlier, "its place does not answer")
    assert {step for step, _ in ordered(world).values()} == {STEPS}
    for shard in range(2):
        world.report(world.lease(SHARD, shard), snapshot=written(shard, STEPS))
    checked(world, world.to_check[-1].snapshot)
    assert (world.jobs["job"].state, world.jobs["job"].snapshot) == (JobState.SUCCEEDED, STEPS)


def test_what_is_decided_to_be_deleted_spares_what_the_jobs_processes_write_from_then_on(world: World) -> None:
    run(world, long(workers=1, shards=0))
    worker = world.lease(WORKER, 0)
    assert world.deleted_to["job"] == (worker.term, -1)
    world.report(worker, step=500)
    world.tick(EVERY_S + 0.2)
    ((step, folder),) = ordered(world).values()
    world.report(worker, step=step, snapshot=written(0, step))
    world.tick()
    world.report(worker, snapshot=written(0, STEPS))
    checked(world, world.to_check[-1].snapshot)
    assert (world.in_use["job"], world.deleted_to["job"]) == ((folder,), (worker.term, step))
    world.report(worker, AllocationEvent.DONE, step=STEPS)
    world.tick()
    checked(world, world.to_check[-1].snapshot)
    assert world.jobs["job"].snapshot == STEPS
    world.keep()
    assert world.deleted_to["job"] is None, "nobody writes any more"


def test_steps_of_snapshots_that_an_earlier_run_was_told_of_spare_no_less_of_the_next(world: World) -> None:
    run(world)
    snapshot = keep(world, at=500)
    due(world, at=50_000)
    lose(world)
    world.bring_to(JobState.RUNNING)
    assert world.deleted_to["job"] == (world.lease(SHARD, 0).term, snapshot.step)


def test_where_workers_update_the_first_of_them_writes_what_all_have(world: World) -> None:
    run(world, JobPlan.model_validate({**long().model_dump(), "update": "workers"}))
    step, _ = due(world, at=500)
    assert sorted(ordered(world)) == ["shard-0", "shard-1", "worker-0"]
    for shard in range(2):
        world.report(world.lease(SHARD, shard), snapshot=written(shard, step))
    world.all_report(WORKER, None, step=step)  # type: ignore[arg-type]
    world.tick()
    assert not world.to_check
    file = SnapshotFile(name="worker-0.safetensors", nbytes=8, sha256="0" * 64)
    world.report(world.lease(WORKER, 0), snapshot=SnapshotDone(step=step, file=file))
    world.tick()
    snapshot = world.to_check[-1].snapshot
    assert [each.name for each in snapshot.files] == [*(f"shard-{n}.safetensors" for n in range(2)), file.name]
    assert (snapshot.loss_scale, snapshot.finite_steps) == (1024.0, 7)  # The shards'.


def test_a_snapshot_that_has_what_changed_in_tables_names_and_keeps_what_it_needs(world: World) -> None:
    run(world)

    def taken(at: int, *, whole: tuple[int, ...] = ()) -> Snapshot:
        due(world, at=at)
        orders = [order for shard in range(2) for order in world.orders(world.lease(SHARD, shard).agent).snapshots]
        for shard, order in enumerate(orders):
            done = written(shard, order.step).model_copy(update={"since": None if shard in whole else order.since})
            world.report(world.lease(SHARD, shard), snapshot=done)
        world.all_report(WORKER, None, step=orders[0].step)  # type: ignore[arg-type]
        world.tick()
        snapshot = world.to_check[-1].snapshot
        checked(world, snapshot)
        return snapshot

    def names(snapshot: Snapshot) -> list[tuple[str, str]]:
        return [(file.folder, file.name.partition(".")[0]) for file in snapshot.files]

    def folder(snapshot: Snapshot) -> str:
        return snapshot.folder.rpartition("/")[2]

    first = taken(500)
    assert names(first) == [("", "shard-0"), ("", "shard-1")]
    second = taken(1500)
    one = folder(first)
    assert names(second) == [(one, "shard-0"), ("", "shard-0"), (one, "shard-1"), ("", "shard-1")]
    third = taken(2500, whole=(1,))  # A process that does not know the one before writes all.
    assert names(third) == [(one, "shard-0"), (folder(second), "shard-0"), ("", "shard-0"), ("", "shard-1")]
    assert set(world.in_use["job"] or ()) == {first.folder, second.folder, third.folder}
    # Files of eight bytes are worth more than two whole ones now: all is written again, and what is not needed goes.
    fourth = taken(3500)
    assert names(fourth) == names(first)
    fifth = taken(4500)
    assert set(world.in_use["job"] or ()) == {fourth.folder, fifth.folder}
    lose(world, SHARD)  # What is written next is by other processes.
    world.bring_to(JobState.RUNNING)
    due(world, at=5500)
    assert {order.since for order in world.orders(world.lease(SHARD, 0).agent).snapshots} == {None}


def test_a_manifest_is_written_once_all_files_are_whole(tmp_path: Path) -> None:
    folder = tmp_path / "job" / "100-1"
    folder.mkdir(parents=True)
    file = SnapshotFile(name="shard-0.safetensors", nbytes=3, sha256="0" * 64)
    snapshot = Snapshot(step=100, folder=str(folder), files=[file])
    with pytest.raises(SnapshotIncompleteError, match=r"shard-0\.safetensors .*have to reach the same place"):
        complete("job", snapshot)
    (folder / file.name).write_bytes(b"12")
    with pytest.raises(SnapshotIncompleteError, match="has 2 bytes of 3"):
        complete("job", snapshot)
    assert not (folder / "snapshot.json").exists()
    (folder / file.name).write_bytes(b"123")
    earlier = file.model_copy(update={"folder": "50-1"})
    with pytest.raises(SnapshotIncompleteError, match=r"50-1/shard-0\.safetensors was written, and"):
        complete("job", snapshot.model_copy(update={"files": [earlier, file]}))
    complete("job", snapshot)
    manifest = (folder / "snapshot.json").read_text()
    assert '"step": 100' in manifest
    assert '"job": "job"' in manifest


@pytest.mark.parametrize("place", ["folder", "memory"])
def test_what_is_not_in_use_is_deleted_and_nothing_of_another_job(tmp_path: Path, place: str) -> None:
    import fsspec

    location = str(tmp_path / "snapshots") if place == "folder" else f"memory://{tmp_path.name}"
    names = ["job/100-1/shard-0.safetensors", "job/200-1/shard-0.safetensors", "other/100-1/shard-0.safetensors"]
    system, root = fsspec.core.url_to_fs(location)
    tidy(location, "job", None)  # Nothing is there.
    assert not system.exists(f"{root}/job")
    tidy(location, "job", ())
    assert system.exists(f"{root}/job/job.json")
    for name in names:
        system.makedirs(f"{root}/{name.rsplit('/', 1)[0]}", exist_ok=True)
        system.pipe_file(f"{root}/{name}", b"1")
    tidy(location, "job", (), (1, 100 - 1))
    assert [system.exists(f"{root}/{name}") for name in names] == [True, True, True]
    tidy(location, "job", (), (0, 300))
    assert [system.exists(f"{root}/{name}") for name in names] == [True, True, True]
    tidy(location, "job", (f"{location}/job/200-1",), (1, 200))
    assert [system.exists(f"{root}/{name}") for name in names] == [False, True, True]
    assert system.exists(f"{root}/job/job.json")
    tidy(location, "job", None)
    assert [system.exists(f"{root}/{name}") for name in names] == [False, False, True]


def test_a_job_that_is_stopped_ends_at_its_next_snapshot_which_a_run_without_steps_brings(world: World) -> None:
    run(world, long(snapshot_every_s=None))
    world.all_report(WORKER, None, step=500)  # type: ignore[arg-type]
    world.tick(20 * EVERY_S)
    assert ordered(world) == {}
    for _ in range(2):  # A repeated call changes nothing.
        world.carry_out(world.controller.stop("job", "by alice", world.now))
    assert world.jobs["job"].reason == "it stops at its next snapshot, by alice"
    world.tick()
    ((step, _),) = set(ordered(world).values())
    for shard in range(2):
        world.report(world.lease(SHARD, shard), snapshot=written(shard, step))
    world.all_report(WORKER, None, step=step + 7)  # type: ignore[arg-type]
    world.tick()
    checked(world, world.to_check[-1].snapshot)
    assert world.jobs["job"].restarts == 0
    assert "stopping" in world.states()
    assert "recovering" not in world.states()
    assert f"stopped at step {step}" in str(world.events["job"])
    world.all_report(SHARD, AllocationEvent.READY)
    (allocation,) = world.orders(world.lease(WORKER, 0).agent).allocations
    assert (allocation.steps, allocation.snapshot.step) == (step, step)
    world.begin_again(job_plan=long())  # What it is about is not forgotten.
    world.agents(shards=2)
    world.bring_to(JobState.FINISHING)
    world.keep()
    job = world.jobs["job"]
    assert (job.state, job.reason, job.snapshot) == (
        JobState.SUCCEEDED,
        f"stopped at step {step}: by alice",
        step,
    )
    assert len(world.in_use["job"]) == 1  # It can be resumed.
    assert job.progress.step == step


def scaled(**changes: Any) -> Scaling:
    return Scaling(spec="{}", plan=long(**changes))


def test_a_job_is_scaled_at_its_next_snapshot_as_the_same_job(world: World) -> None:
    run(world)
    world.all_report(WORKER, None, step=500)  # type: ignore[arg-type]
    world.agents(workers=1, shards=0)
    for workers, shards, noun in ((4, 2, "4 workers: 3"), (3, 3, "3 shards: 2")):
        with pytest.raises(WrongStateError, match=f"cannot have {noun} of the cluster are free for it"):
            world.controller.scale("job", scaled(workers=workers, shards=shards), world.now)
    assert world.controller.scale("job", scaled(), world.now) == [], "it runs so already"
    world.carry_out(world.controller.scale("job", scaled(workers=3, shards=1), world.now))
    told = "goes on with 3 workers, 1 shard from"
    assert world.jobs["job"].reason == f"{told} its next snapshot on"
    assert "scaling" in world.parts["job"], "a server that starts again knows of it"
    world.tick()
    ((step, _),) = set(ordered(world).values())
    for shard in range(2):
        world.report(world.lease(SHARD, shard), snapshot=written(shard, step))
    world.all_report(WORKER, None, step=step + 7, traffic={"sent_bytes": 5, "received_bytes": 3})  # type: ignore[arg-type]
    world.tick()
    checked(world, world.to_check[-1].snapshot)
    job = world.jobs["job"]
    assert job.traffic.sent_bytes == 10, "of both workers, whose places others have from now on"
    assert (job.workers, job.shards, job.restarts, "scaling" in world.parts["job"]) == (3, 1, 0, False)
    assert f"the job {told} step {step}: 7 steps are done again" in world.said()
    assert [each.plan.workers for each in world.replanned] == [3]
    assert world.states()[-2:] == ["scaling", "starting"]
    world.bring_to(JobState.RUNNING)
    (allocation,) = world.orders(world.lease(WORKER, 2).agent).allocations
    assert (allocation.snapshot.step, len(allocation.store.shards), allocation.store.slots) == (step, 1, 3)
    world.report(world.lease(WORKER, 0), traffic={"sent_bytes": 1, "received_bytes": 1})
    world.carry_out(world.controller.cancel("job", "by alice", world.now))
    assert world.jobs["job"].traffic.model_dump() == {"sent_bytes": 11, "received_bytes": 7}


def test_a_job_that_is_lost_before_its_snapshot_goes_on_with_the_new_numbers(world: World) -> None:
    run(world)
    world.carry_out(world.controller.scale("job", scaled(workers=1), world.now))
    world.begin_again(job_plan=long())
    world.agents(workers=1, shards=2)
    assert (world.jobs["job"].state, world.jobs["job"].workers) == (JobState.STARTING, 1)


def test_a_job_that_cannot_be_scaled_says_why(world: World) -> None:
    run(world, long(mode="async"))
    with pytest.raises(WrongStateError, match="takes no snapshots to go on from: its mode is async; cancel it"):
        world.controller.scale("job", scaled(workers=1), world.now)
    other = World(Limits(snapshots="/snapshots"))
    other.agents(shards=2)
    other.submit(long())
    with pytest.raises(WrongStateError, match="is starting: one that runs"):
        other.controller.scale("job", scaled(workers=1), other.now)


def test_a_stop_does_not_wait_for_a_snapshot_that_is_ordered_of_a_step_far_away(world: World) -> None:
    run(world, long(snapshot_every_s=60.0, steps=1_000_000))
    world.all_report(WORKER, None, step=3000)  # type: ignore[arg-type]
    world.tick(60.2)
    ((periodic, _),) = set(ordered(world).values())
    assert (periodic, periodic % 1000) == (4000, 0)  # 20 s ahead, where metrics are told.
    world.carry_out(world.controller.stop("job", "by alice", world.now))
    world.tick()
    ((urgent, _),) = set(ordered(world).values())
    assert 3000 < urgent < 3100


def test_a_job_without_snapshots_is_not_stopped_and_neither_is_one_that_does_not_run(world: World) -> None:
    world.agents(shards=2)
    world.submit(long())
    with pytest.raises(WrongStateError, match="one that runs can be stopped; cancel ends any"):
        world.controller.stop("job", "by alice", world.now)
    other = World(Limits())
    run(other)
    with pytest.raises(WrongStateError, match=r"the server keeps none\. Save its parameters, then cancel it"):
        other.controller.stop("job", "by alice", other.now)


def test_a_job_that_ends_before_its_stop_has_its_own_result(world: World) -> None:
    run(world, long(steps=503))
    world.all_report(WORKER, None, step=500)  # type: ignore[arg-type]
    world.carry_out(world.controller.stop("job", "by alice", world.now))
    world.tick(3)
    world.all_report(WORKER, AllocationEvent.DONE, step=503)
    world.keep()
    world.tick(WAIT_S + 1)
    assert (world.jobs["job"].state, world.jobs["job"].reason) == (JobState.SUCCEEDED, None)


def test_a_stop_is_not_forgotten_where_the_job_is_placed_anew_or_the_server_starts_again(world: World) -> None:
    run(world, long(snapshot_every_s=None))
    world.carry_out(world.controller.stop("job", "by alice", world.now))
    lose(world)
    world.bring_to(JobState.RUNNING)
    world.all_report(WORKER, None, step=20)  # type: ignore[arg-type]
    world.tick()
    assert sorted(ordered(world)) == ["shard-0", "shard-1"]
    assert world.jobs["job"].reason == "it stops at its next snapshot, by alice"


def test_a_job_that_is_stopped_by_a_client_has_its_next_snapshot_though_it_keeps_its_best(world: World) -> None:
    run(world, long(stop_when=StopWhen(metric="loss", patience=100)))
    for step, loss in ((100, 1.0), (200, 3.0)):
        for slot in range(2):
            report = MetricReport(split="evaluate", step=step, samples=1, sums={"loss": loss})
            world.report(world.lease(WORKER, slot), metrics=[report])
    keep(world, at=500)
    world.carry_out(world.controller.stop("job", "by alice", world.now))
    world.tick()
    ((step, _),) = set(ordered(world).values())
    for shard in range(2):
        world.report(world.lease(SHARD, shard), snapshot=written(shard, step))
    world.all_report(WORKER, None, step=step)  # type: ignore[arg-type]
    world.tick()
    checked(world, world.to_check[-1].snapshot)
    reasons = [event.body.reason or "" for event in world.events["job"] if isinstance(event.body, StateChanged)]
    assert any(reason.startswith(f"stopped at step {step}: by alice") for reason in reasons)


def test_a_place_that_does_not_answer_holds_up_no_job(world: World) -> None:
    run(world)
    snapshot = take(world, at=500)
    world.tick(WAIT_S + 0.4)
    assert f"no snapshot of step {snapshot.step} was kept: their place did not answer" in world.said()[-1]
    checked(world, snapshot)  # Too late.
    assert world.jobs["job"].snapshot is None
    keep(world, at=snapshot.step + 500)


def test_a_job_does_not_wait_for_a_last_snapshot_of_which_a_worker_did_not_write_its_part(world: World) -> None:
    owes = {"compression": {"gradients": {"kind": "2bit", "threshold": 0.1}}}
    run(world, JobPlan.model_validate({**long().model_dump(), **owes}))
    world.report(world.lease(WORKER, 0), snapshot=SnapshotDone(step=STEPS, error="no space left"))
    world.report(world.lease(WORKER, 1), snapshot=written(1, STEPS))
    world.keep()
    world.all_report(WORKER, AllocationEvent.DONE, step=STEPS)
    world.tick()
    assert world.jobs["job"].state is JobState.SUCCEEDED


def test_a_job_that_lacks_a_worker_is_scaled_from_its_newest_snapshot_or_says_what_it_waits_for(world: World) -> None:
    world.limits = Limits(snapshots="/snapshots", lost_after_s=5.0)
    world.__post_init__()
    workers, shards = world.agents(shards=2)
    world.submit(long())
    world.bring_to(JobState.RUNNING)
    scaling = Scaling(spec="{}", plan=long(workers=1))
    alive = [*workers[1:], *shards]
    world.tick(5.2, alive=alive)
    with pytest.raises(
        WrongStateError, match="waits for a worker to take the place of worker 0, and has no snapshot yet"
    ):
        world.controller.scale("job", scaling, world.now)
    world.agent(WORKER, "worker-2")
    alive += [agent.id for agent in world.controller.agents(world.now) if agent.name == "worker-2"]
    world.report(world.lease(WORKER, 0), AllocationEvent.READY)
    world.report(world.lease(WORKER, 0), AllocationEvent.RUNNING)
    world.all_report(WORKER, None, step=500)  # type: ignore[arg-type]
    world.tick(EVERY_S + 0.2, alive=alive)
    ((step, _),) = set(ordered(world).values())
    for shard in range(2):
        world.report(world.lease(SHARD, shard), snapshot=written(shard, step))
    world.all_report(WORKER, None, step=step)  # type: ignore[arg-type]
    world.tick(0.4, alive=alive)
    checked(world, world.to_check[-1].snapshot)
    world.tick(5.2, alive=alive[:-1])
    assert (world.jobs["job"].reason or "").startswith("needs 1 worker; 1 is registered, 0 are free: it starts when ")
    world.carry_out(world.controller.scale("job", scaling, world.now))
    assert (world.jobs["job"].workers, world.jobs["job"].state) == (1, JobState.STARTING)
