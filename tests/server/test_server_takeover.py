"""A job that loses a worker goes on: another one takes its slot over, and nobody else begins anew."""

from __future__ import annotations

from typing import Any

import pytest

from server_control import World
from server_specs import plan
from weft.api.agent import AgentKind, WorkerAllocation
from weft.api.job import UpdateBy
from weft.api.lifecycle import AllocationEvent, JobState
from weft_server.control.leases import Lease
from weft_server.planning.plan import Given, JobPlan
from weft_server.refusals import UnknownError, WrongStateError

WORKER, SHARD = AgentKind.WORKER, AgentKind.SHARD


@pytest.fixture
def world() -> World:
    return World()


def run(world: World, job_plan: JobPlan | None = None, state: JobState = JobState.RUNNING) -> None:
    world.submit(job_plan or plan(max_restarts=2))
    world.bring_to(state)


def kill(world: World, slot: int) -> Lease:
    """The worker's process is killed: the lease that it had."""
    lease = world.lease(WORKER, slot)
    world.report(lease, AllocationEvent.FAILED, reason="it was ended by SIGKILL", lost=True)
    return lease


def begin(world: World, slot: int) -> None:
    for event in (AllocationEvent.READY, AllocationEvent.RUNNING):
        world.report(world.lease(WORKER, slot), event)


def allocation(world: World, slot: int) -> WorkerAllocation:
    (found,) = world.orders(world.lease(WORKER, slot).agent).allocations
    assert isinstance(found, WorkerAllocation)
    return found


def test_final_values_that_were_deleted_before_the_end_are_brought_again(world: World) -> None:
    world.agents()
    run(world)
    world.keep()
    world.report(world.lease(WORKER, 0), AllocationEvent.DONE, step=6)
    assert world.controller.with_final() == ["job"]
    world.carry_out(world.controller.final_deleted("job", world.now))
    assert (world.jobs["job"].state, world.controller.with_final()) == (JobState.RUNNING, [])
    assert "the final values that worker-0 (worker 0) brought were deleted from the server's disk; " in world.said()[-2]
    again = allocation(world, 0)
    assert (again.keeper, again.incarnation) == (True, 2)
    begin(world, 0)
    world.report(world.lease(WORKER, 1), AllocationEvent.DONE, step=6)
    world.keep()
    world.report(world.lease(WORKER, 0), AllocationEvent.DONE, step=6)
    assert world.jobs["job"].state is JobState.SUCCEEDED
    world.carry_out(world.controller.final_deleted("job", world.now))
    assert world.jobs["job"].state is JobState.SUCCEEDED


@pytest.mark.parametrize("restarts", [0, 1])
def test_final_values_that_were_deleted_are_brought_from_a_snapshot_where_nobody_holds_them(
    world: World, restarts: int
) -> None:
    world.agents()
    run(world, plan(max_restarts=restarts, update=UpdateBy.WORKERS))
    world.keep()
    world.carry_out(world.controller.final_deleted("job", world.now))
    assert world.jobs["job"].state is (JobState.STARTING if restarts else JobState.FAILED)


def test_the_agent_whose_process_was_killed_takes_its_slot_over_and_the_others_go_on(world: World) -> None:
    world.agents()
    run(world)
    others = [world.lease(WORKER, 1), world.lease(SHARD, 0)]
    before, lost = allocation(world, 0), world.lease(WORKER, 0)
    world.report(lost, step=2)
    kill(world, 0)
    assert [world.lease(WORKER, 1), world.lease(SHARD, 0)] == others
    again = allocation(world, 0)
    assert (again.slot, again.term, again.incarnation) == (0, before.term, before.incarnation + 1)
    assert (again.id != before.id, again.keeper, again.snapshot) == (True, True, None)
    assert again.store == before.store
    assert world.lease(WORKER, 0).step == 2
    assert world.states()[-1] == "running"
    assert "repeats the step that was interrupted" in world.said()[-1]
    assert world.jobs["job"].restarts == 1
    with pytest.raises(UnknownError):
        world.report(lost, step=3)
    begin(world, 0)
    world.all_report(WORKER, AllocationEvent.DONE, step=world.jobs["job"].progress.steps)
    world.keep()
    assert world.jobs["job"].state is JobState.SUCCEEDED


def test_a_slot_whose_agent_is_lost_waits_for_another_and_says_so(world: World) -> None:
    workers, shards = world.agents()
    run(world)
    world.tick(5.2, alive=[*workers[1:], *shards])
    job = world.jobs["job"]
    assert (job.state, job.reason) == (
        JobState.RUNNING,
        "needs 1 worker; 1 is registered, 0 are free: it starts when `weft up` has started a lost one again, or other "
        "jobs end",
    )
    with pytest.raises(WrongStateError, match="was lost; ask again once another took over"):
        world.controller.want_parameters("job")
    world.agent(WORKER, "worker-2")
    assert (allocation(world, 0).incarnation, world.lease(WORKER, 0).agent_name) == (2, "worker-2")
    assert world.jobs["job"].reason is None


def test_a_slot_of_a_job_that_runs_is_filled_before_a_job_that_waits_is_placed(world: World) -> None:
    workers, shards = world.agents()
    run(world)
    world.submit(plan(workers=1), "next")
    world.tick(5.2, alive=[*workers[1:], *shards])
    world.agent(WORKER, "worker-2")
    assert allocation(world, 0).job == "job"
    assert world.jobs["next"].state is JobState.PENDING


def test_what_fails_for_want_of_the_one_that_was_lost_counts_as_the_same_loss(world: World) -> None:
    workers, shards = world.agents()
    run(world, plan(max_restarts=1))
    world.tick(5.2, alive=[*workers[1:], *shards])
    world.report(world.lease(WORKER, 1), AllocationEvent.FAILED, reason="pull of key 'w' took over 60 s")
    job = world.jobs["job"]
    assert (job.state, job.restarts) == (JobState.RUNNING, 1)
    world.agent(WORKER, "worker-2")
    assert [allocation(world, slot).incarnation for slot in range(2)] == [2, 2]
    world.report(world.lease(WORKER, 1), AllocationEvent.FAILED, reason="pull of key 'w' took over 60 s")
    assert (world.jobs["job"].reason or "").endswith("the job has gone on 1 times before (max_restarts)")


def test_a_shard_that_is_lost_meanwhile_has_the_whole_job_go_on_anew(world: World) -> None:
    workers, shards = world.agents()
    run(world)
    world.tick(5.2, alive=[*workers[1:], *shards])
    world.report(world.lease(SHARD, 0), AllocationEvent.FAILED, reason="killed", lost=True)
    assert world.jobs["job"].state is JobState.RECOVERING
    world.agent(WORKER, "worker-2")
    world.bring_to(JobState.SUCCEEDED)
    assert world.jobs["job"].restarts == 1


def test_a_keeper_that_is_lost_before_it_has_brought_the_result_is_replaced(world: World) -> None:
    workers, shards = world.agents(workers=3)
    run(world, state=JobState.FINISHING)
    world.tick(5.2, alive=[*workers[1:], *shards])
    assert (allocation(world, 0).keeper, world.lease(WORKER, 0).agent) == (True, workers[2])
    begin(world, 0)
    world.keep()
    assert world.jobs["job"].state is JobState.SUCCEEDED


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": "async"},
        {"update": "workers"},
        {"given": Given(names=["w"], file="f")},
    ],
    ids=str,
)
def test_jobs_of_which_workers_hold_what_nobody_else_has_begin_anew(world: World, changes: dict[str, Any]) -> None:
    world.agents()
    run(world, JobPlan.model_validate({**plan(max_restarts=2).model_dump(), **changes}))
    kill(world, 0)
    assert world.states()[-2:] == ["recovering", "starting"]


def test_a_server_that_starts_again_knows_which_slot_is_vacant(world: World) -> None:
    workers, shards = world.agents()
    run(world)
    world.tick(5.2, alive=[*workers[1:], *shards])
    run_before = world.controller.run_of("job")
    assert run_before is not None
    assert sorted(run_before.memory.vacant) == [0]
    assert '"vacant":[0]' in world.parts["job"]["run"]
    world.begin_again(job_plan=plan(max_restarts=2))  # Its agents are gone too.
    world.agents()
    world.bring_to(JobState.SUCCEEDED)
    assert world.jobs["job"].restarts == 1


def test_a_worker_that_takes_over_and_does_not_begin_is_replaced_again(world: World) -> None:
    workers, shards = world.agents(workers=3)
    run(world, plan(max_restarts=2))
    world.tick(5.2, alive=[*workers[1:], *shards])
    slow = world.lease(WORKER, 0)
    assert slow.agent == workers[2]
    world.tick(world.limits.job.start_s + 0.4, alive=[*workers[1:], *shards])
    assert any(f"{slow.who} did not begin within" in said for said in world.said())
    assert (world.lease(WORKER, 0).incarnation, world.jobs["job"].restarts) == (3, 2)
