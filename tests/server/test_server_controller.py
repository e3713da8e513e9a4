"""The server's state machine, with a clock that is set by hand: every state, every way out of it."""

from __future__ import annotations

from itertools import count

import pytest

from server_control import World
from server_specs import plan
from weft.api.agent import AgentKind, CurvePair, LogReport, MetricReport, SetDone, ShardAllocation, WorkerAllocation
from weft.api.event import MetricTaken, StepDone
from weft.api.lifecycle import AgentState, AllocationEvent, JobState
from weft_server.control.controller import Controller
from weft_server.control.instructions import Instruction
from weft_server.control.job_run import JobRun
from weft_server.control.leases import Lease
from weft_server.control.limits import Limits
from weft_server.control.memory import Parts
from weft_server.control.scheduler import PATIENCE_S, Decision, View, schedule
from weft_server.planning.plan import Given
from weft_server.refusals import (
    FullError,
    IllegalReportError,
    NotKeeperError,
    StaleTermError,
    UnknownError,
    WrongStateError,
)

WORKER, SHARD = AgentKind.WORKER, AgentKind.SHARD
ACTIVE = [JobState.STARTING, JobState.RUNNING, JobState.FINISHING]


@pytest.fixture
def world() -> World:
    return World()


def test_a_job_goes_through_its_whole_life_and_everything_is_released(world: World) -> None:
    workers, shards = world.agents()
    world.submit()
    world.bring_to(JobState.SUCCEEDED)
    assert world.states() == ["pending", "starting", "running", "finishing", "succeeded"]
    assert world.closed == ["job"]
    assert [world.orders(agent).allocations for agent in (*workers, *shards)] == [[], [], []]
    job = world.jobs["job"]
    assert job.started_at is not None
    assert job.ended_at is not None
    assert job.progress.step == 6


def test_a_job_without_agents_says_what_it_needs_and_starts_when_they_come(world: World) -> None:
    world.submit()
    assert (
        world.jobs["job"].reason
        == "needs 1 shard; 0 are registered: start 1 more (python -m weft_kvstore --server URL)"
    )
    world.agent(SHARD, "shard-0")
    world.agent(WORKER, "worker-0")
    assert (
        world.jobs["job"].reason == "needs 2 workers; 1 is registered, 1 is free: start 1 more "
        "(python -m weft_worker --server URL), or submit it for at most 1"
    )
    world.agent(WORKER, "worker-1")
    assert world.jobs["job"].state is JobState.STARTING
    assert world.jobs["job"].reason is None


def test_workers_are_told_only_when_every_shard_is_ready(world: World) -> None:
    workers, shards = world.agents(workers=1, shards=2)
    world.submit(plan(workers=1, shards=2))
    assert all(isinstance(world.orders(shard).allocations[0], ShardAllocation) for shard in shards)
    world.report(world.lease(SHARD, 0), AllocationEvent.READY)
    assert world.orders(workers[0]).allocations == []
    world.report(world.lease(SHARD, 1), AllocationEvent.READY)
    told = world.orders(workers[0]).allocations[0]
    assert isinstance(told, WorkerAllocation)
    assert told.keeper
    assert told.store.shards == ["tcp://shard-0:5000", "tcp://shard-1:5000"]
    assert workers[0] in world.ordered


@pytest.mark.parametrize("allowed", [False, True])
def test_a_worker_is_told_whether_it_may_compute_in_tf32(world: World, allowed: bool) -> None:
    world.submit(plan(workers=1, shards=0).model_copy(update={"allow_tf32": allowed}))
    (told,) = world.orders(world.agent(WORKER, "worker-0")).allocations
    assert isinstance(told, WorkerAllocation)
    assert told.allow_tf32 is allowed


def test_a_job_without_shards_is_placed_where_there_are_none_and_its_worker_is_told_at_once(world: World) -> None:
    world.submit(plan(workers=1, shards=0))
    assert (
        world.jobs["job"].reason
        == "needs 1 worker; 0 are registered, 0 are free: start 1 more (python -m weft_worker --server URL)"
    )
    worker = world.agent(WORKER, "worker-0")
    (told,) = world.orders(worker).allocations
    assert isinstance(told, WorkerAllocation)
    assert told.store.shards == []
    world.bring_to(JobState.SUCCEEDED)
    assert world.states() == ["pending", "starting", "running", "finishing", "succeeded"]


def test_workers_are_told_the_endpoint_that_a_ready_shard_reports(world: World) -> None:
    workers, _ = world.agents(workers=1, shards=2)
    world.submit(plan(workers=1, shards=2))
    world.report(world.lease(SHARD, 1), AllocationEvent.READY, endpoint="tcp://shard-1:6001")
    world.report(world.lease(SHARD, 0), AllocationEvent.READY)
    told = world.orders(workers[0]).allocations[0]
    assert told.store.shards == ["tcp://shard-0:5000", "tcp://shard-1:6001"]


@pytest.mark.parametrize(
    ("who", "event", "endpoint", "told"),
    [
        (SHARD, AllocationEvent.READY, None, "gives no `endpoint`"),
        (SHARD, AllocationEvent.READY, "inproc://x", "is neither tcp"),
        (SHARD, AllocationEvent.READY, "file:///etc/passwd", "is neither tcp"),
        (SHARD, AllocationEvent.READY, "tcp://*:6001", "every address"),
        (SHARD, AllocationEvent.READY, "tcp://0.0.0.0:6001", "every address"),
        (SHARD, AllocationEvent.READY, "tcp://[::]:6001", "every address"),
        (SHARD, AllocationEvent.READY, "tcp://a:0", "no port"),
        (SHARD, AllocationEvent.FAILED, "tcp://shard-0:6001", "belongs to a shard's report that it is ready"),
        (WORKER, AllocationEvent.READY, "tcp://shard-0:6001", "belongs to a shard's report that it is ready"),
    ],
)
def test_an_endpoint_that_is_none_changes_nothing(
    world: World, who: AgentKind, event: AllocationEvent, endpoint: str | None, told: str
) -> None:
    world.agents()
    world.submit()
    if who is WORKER:
        world.all_report(SHARD, AllocationEvent.READY)
    lease = world.lease(who, 0)
    before = lease.state
    with pytest.raises(IllegalReportError, match=told):
        world.report(lease, event, endpoint=endpoint)
    assert lease.state is before
    assert world.jobs["job"].state is JobState.STARTING


def test_exactly_one_worker_keeps_the_parameters(world: World) -> None:
    workers, _ = world.agents(workers=3)
    world.submit(plan(workers=3))
    world.all_report(SHARD, AllocationEvent.READY)
    told = [world.orders(worker).allocations[0] for worker in workers]
    assert sum(each.keeper for each in told if isinstance(each, WorkerAllocation)) == 1


@pytest.mark.parametrize("state", ACTIVE)
@pytest.mark.parametrize("who", [(WORKER, 0), (SHARD, 0)])
def test_an_agent_lost_in_any_state_fails_the_job_and_is_named(
    world: World, state: JobState, who: tuple[AgentKind, int]
) -> None:
    workers, shards = world.agents()
    world.submit()
    world.bring_to(state)
    lease = world.lease(*who)
    others = [agent for agent in (*workers, *shards) if agent != lease.agent]
    world.tick(4.8, alive=others)
    assert world.jobs["job"].state is state
    world.tick(0.4, alive=others)
    job = world.jobs["job"]
    assert job.state is JobState.FAILED
    where = {
        JobState.STARTING: "before the first step",
        JobState.RUNNING: "at step 0 of 6",
        JobState.FINISHING: "at step 6 of 6",
    }[state]
    assert job.reason == f"{lease.who} was lost: silent for 5.0 s, {where}"
    assert all(world.orders(agent).allocations == [] for agent in others)


def test_a_worker_lost_after_its_last_step_does_no_harm_unless_it_keeps_the_parameters(world: World) -> None:
    workers, shards = world.agents()
    world.submit()
    world.bring_to(JobState.FINISHING)
    run = world.controller.run_of("job")
    assert run is not None
    idle = next(lease for lease in run.leases.workers if lease is not run.keeper)
    world.tick(6, alive=[agent for agent in (*workers, *shards) if agent != idle.agent])
    assert world.jobs["job"].state is JobState.FINISHING
    assert any(idle.who in line for line in world.said())
    world.keep()
    assert world.jobs["job"].state is JobState.SUCCEEDED


def test_a_job_ends_well_when_a_worker_that_was_done_is_lost_before_the_others_are(world: World) -> None:
    workers, shards = world.agents()
    world.submit()
    world.bring_to(JobState.RUNNING)
    run = world.controller.run_of("job")
    assert run is not None
    early = next(lease for lease in run.leases.workers if lease is not run.keeper)
    world.report(early, AllocationEvent.DONE, step=6)
    world.tick(6, alive=[agent for agent in (*workers, *shards) if agent != early.agent])
    assert world.jobs["job"].state is JobState.RUNNING
    world.report(run.keeper, AllocationEvent.DONE, step=6)
    world.keep()
    assert world.jobs["job"].state is JobState.SUCCEEDED


def test_a_lost_agent_is_unknown_from_then_on_and_listed_as_lost(world: World) -> None:
    workers, _ = world.agents(workers=1)
    world.tick(5.2)
    with pytest.raises(UnknownError, match="no agent"):
        world.orders(workers[0])
    with pytest.raises(UnknownError):
        world.heard(workers[0])
    listed = {agent.name: agent.state for agent in world.controller.agents(world.now)}
    assert listed == {"worker-0": AgentState.LOST, "shard-0": AgentState.LOST}
    world.tick(100.0)
    assert {agent.silent_s for agent in world.controller.agents(world.now)} == {105.2}


@pytest.mark.parametrize("state", [JobState.PENDING, *ACTIVE])
def test_a_job_can_be_cancelled_in_any_state_before_its_end(world: World, state: JobState) -> None:
    if state is not JobState.PENDING:
        world.agents()
    world.submit()
    if state is not JobState.PENDING:
        world.bring_to(state)
    world.carry_out(world.controller.cancel("job", "by alice", world.now))
    assert world.jobs["job"].state is JobState.CANCELLED
    assert world.closed == ["job"]
    with pytest.raises(UnknownError):
        world.controller.cancel("job", "by alice", world.now)


def test_a_failure_names_agent_place_step_and_reason(world: World) -> None:
    world.agents()
    world.submit()
    world.bring_to(JobState.RUNNING)
    lease = world.lease(WORKER, 1)
    world.report(lease, step=3)
    world.report(lease, AllocationEvent.FAILED, reason="RuntimeError: no memory left")
    assert world.jobs["job"].reason == "worker-1 (worker 1) failed at step 4 of 6: RuntimeError: no memory left"


def test_a_step_that_the_reason_names_is_not_said_twice(world: World) -> None:
    world.agents()
    world.submit()
    world.bring_to(JobState.RUNNING)
    reason = "label 5 in row 9 of column 'y', read in step 4, is not one of the 2 classes"
    world.report(world.lease(WORKER, 1), AllocationEvent.FAILED, reason=reason)
    assert world.jobs["job"].reason == f"worker-1 (worker 1) failed: {reason}"


def test_a_failure_also_names_agents_that_have_not_been_heard_of(world: World) -> None:
    """A worker notices a dead peer before the server does: the reason leads to the cause."""
    workers, shards = world.agents()
    world.submit()
    world.bring_to(JobState.RUNNING)
    world.tick(3.0, alive=[*workers])
    world.report(world.lease(WORKER, 0), AllocationEvent.FAILED, reason="shard 0 is silent")
    reason = world.jobs["job"].reason or ""
    assert reason.startswith("worker-0 (worker 0) failed at step 1 of 6: shard 0 is silent")
    assert reason.endswith("; shard-0 (shard 0) has been silent for 3.0 s")
    assert shards


def test_the_first_failure_is_the_reason(world: World) -> None:
    world.agents()
    world.submit()
    world.bring_to(JobState.RUNNING)
    first, second = world.lease(WORKER, 0), world.lease(WORKER, 1)
    world.report(first, AllocationEvent.FAILED, reason="the first")
    with pytest.raises(UnknownError, match="no allocation"):
        world.report(second, AllocationEvent.FAILED, reason="the second")
    assert (world.jobs["job"].reason or "").endswith("the first")


def test_logs_that_come_with_a_failure_precede_the_end(world: World) -> None:
    world.agents()
    world.submit()
    world.bring_to(JobState.RUNNING)
    world.report(
        world.lease(WORKER, 0), AllocationEvent.FAILED, logs=[LogReport(level="error", message="the trace")], reason="x"
    )
    assert "the trace" in world.said()
    assert world.states()[-1] == "failed"


def test_a_worker_that_gives_its_place_up_fails_the_job(world: World) -> None:
    world.agents()
    world.submit()
    world.bring_to(JobState.RUNNING)
    world.report(world.lease(WORKER, 1), AllocationEvent.RELEASED)
    assert world.jobs["job"].reason == "worker-1 (worker 1) gave its place up at step 0 of 6"


def test_a_repeated_report_changes_nothing(world: World) -> None:
    world.agents()
    world.submit()
    lease = world.lease(SHARD, 0)
    world.report(lease, AllocationEvent.READY, seq=1)
    before = list(world.events["job"])
    world.report(lease, AllocationEvent.READY, seq=1)
    world.report(lease, AllocationEvent.FAILED, seq=1)
    assert world.events["job"] == before


def test_reports_of_another_term_or_of_unknown_allocations_are_refused(world: World) -> None:
    world.agents()
    world.submit()
    lease = world.lease(WORKER, 0)
    with pytest.raises(StaleTermError, match=rf"holds term {lease.term} .* not {lease.term - 1}"):
        world.report(lease, AllocationEvent.FAILED, term=lease.term - 1)
    assert world.jobs["job"].state is JobState.STARTING
    lease.id = "nobody"
    with pytest.raises(UnknownError):
        world.report(lease, AllocationEvent.FAILED)


def test_terms_of_leases_grow(world: World) -> None:
    world.agents(workers=2, shards=1)
    for job in ("one", "two"):
        world.submit(plan(workers=1), job)
    assert world.lease(WORKER, 0, "one").term < world.lease(WORKER, 0, "two").term


def test_an_event_that_the_table_lacks_is_refused_and_nothing_has_changed(world: World) -> None:
    world.agents()
    world.submit()
    lease = world.lease(WORKER, 0)
    with pytest.raises(IllegalReportError, match=r"worker-0 \(worker 0\) is assigned and cannot be done next"):
        world.report(lease, AllocationEvent.DONE, seq=1, step=5)
    assert (lease.seq, lease.step) == (0, 0)


def test_a_job_that_does_not_start_in_time_names_who_is_missing(world: World) -> None:
    workers, shards = world.agents()
    everybody = [*workers, *shards]
    world.submit()
    world.tick(60.2, alive=everybody)
    assert world.jobs["job"].reason == "not started within 60 s: it waits for shard-0 (shard 0) to be ready"
    world.submit(job="again")
    world.all_report(SHARD, AllocationEvent.READY, "again")
    world.report(world.lease(WORKER, 0, "again"), AllocationEvent.READY)
    world.report(world.lease(WORKER, 0, "again"), AllocationEvent.RUNNING)
    world.tick(60.2, alive=everybody)
    assert world.jobs["again"].reason == "not started within 60 s: it waits for worker-1 (worker 1) to run"


def test_a_keeper_that_does_not_bring_the_parameters_in_time_fails_the_job(world: World) -> None:
    workers, shards = world.agents()
    world.submit()
    world.bring_to(JobState.FINISHING)
    world.tick(300.2, alive=[*workers, *shards])
    assert world.jobs["job"].reason == "worker-0 (worker 0) did not bring the final parameters within 300 s"


def test_a_keeper_that_tries_again_and_again_to_bring_the_parameters_is_waited_for(world: World) -> None:
    """The server's disk may be full: what was trained is not given up for that."""
    everybody = [agent for some in world.agents() for agent in some]
    world.submit()
    world.bring_to(JobState.FINISHING)
    keeper = world.lease(WORKER, 0)
    for _ in range(3):
        world.tick(299.0, alive=everybody)
        world.controller.check_parameters(keeper.id, keeper.term, 6, True, world.now)
    assert world.jobs["job"].state is JobState.FINISHING
    world.keep()
    assert world.jobs["job"].state is JobState.SUCCEEDED


def test_a_running_job_has_no_deadline(world: World) -> None:
    workers, shards = world.agents()
    world.submit()
    world.bring_to(JobState.RUNNING)
    world.tick(400, alive=[*workers, *shards])
    assert world.jobs["job"].state is JobState.RUNNING


def test_final_parameters_may_come_before_the_last_worker_is_done(world: World) -> None:
    world.agents()
    world.submit()
    world.bring_to(JobState.RUNNING)
    world.keep()
    assert world.jobs["job"].state is JobState.RUNNING
    world.all_report(WORKER, AllocationEvent.DONE, step=6)
    assert world.jobs["job"].state is JobState.SUCCEEDED


def test_only_the_keeper_brings_parameters_and_only_of_steps_that_there_are(world: World) -> None:
    world.agents()
    world.submit()
    world.bring_to(JobState.RUNNING)
    run = world.controller.run_of("job")
    assert run is not None
    other = next(lease for lease in run.leases.workers if lease is not run.keeper)
    with pytest.raises(NotKeeperError, match="is not to bring parameters"):
        world.controller.check_parameters(other.id, other.term, 6, True, world.now)
    for step, final in ((5, True), (7, False), (-1, False)):
        with pytest.raises(NotKeeperError, match=f"step {step} of 6"):
            world.controller.check_parameters(run.keeper.id, run.keeper.term, step, final, world.now)
    with pytest.raises(StaleTermError):
        world.controller.check_parameters(run.keeper.id, run.keeper.term + 1, 6, True, world.now)


def test_live_parameters_are_asked_of_the_keeper_once_and_forgotten_when_brought(world: World) -> None:
    world.agents()
    world.submit()
    with pytest.raises(WrongStateError, match="is starting"):
        world.controller.want_parameters("job")
    world.bring_to(JobState.RUNNING)
    keeper, instructions = world.controller.want_parameters("job")
    assert len(instructions) == 1
    version = world.orders(keeper.agent).version
    assert world.controller.want_parameters("job") == (keeper, [])
    assert world.orders(keeper.agent).upload == [keeper.id]
    world.carry_out(world.controller.keep(keeper.id, keeper.term, 2, False, world.now))
    assert world.orders(keeper.agent).upload == []
    assert world.orders(keeper.agent).version > version


def test_metrics_are_means_over_the_samples_of_all_slots(world: World) -> None:
    world.agents()
    world.submit()
    world.bring_to(JobState.RUNNING)

    def metric(samples: int, loss: float) -> MetricReport:
        return MetricReport(split="train", step=3, samples=samples, sums={"loss": loss * samples})

    world.report(world.lease(WORKER, 0), metrics=[metric(3, 1.0)])
    assert not [each for each in world.events["job"] if isinstance(each.body, MetricTaken)]
    world.report(world.lease(WORKER, 1), metrics=[metric(1, 5.0)])
    taken = [each.body for each in world.events["job"] if isinstance(each.body, MetricTaken)]
    assert taken == [MetricTaken(split="train", step=3, values={"loss": 2.0}, samples=4)]
    assert world.jobs["job"].metrics == {"train/loss": 2.0}


def test_progress_is_that_of_the_slowest_worker_about_once_a_second(world: World) -> None:
    workers, shards = world.agents()
    everybody = [*workers, *shards]
    world.submit()
    world.bring_to(JobState.RUNNING)
    world.report(world.lease(WORKER, 0), step=4)
    world.report(world.lease(WORKER, 1), step=2)
    world.tick(0.8, alive=everybody)
    assert not [each for each in world.events["job"] if isinstance(each.body, StepDone)]
    world.tick(0.2, alive=everybody)
    steps = [each.body for each in world.events["job"] if isinstance(each.body, StepDone)]
    # Batches of 4 in passes of 10 rows: two steps are 8 samples, in a second.
    assert [(each.step, each.steps, each.epoch) for each in steps] == [(2, 6, 1)]
    assert steps[0].samples_per_second == pytest.approx(8.0)
    world.report(world.lease(WORKER, 1), step=4)
    world.tick(1.0, alive=everybody)
    assert world.jobs["job"].progress.step == 4
    assert world.jobs["job"].progress.epoch == 2
    world.tick(0.01, alive=everybody)
    world.all_report(WORKER, AllocationEvent.DONE, step=6)
    last = [each.body for each in world.events["job"] if isinstance(each.body, StepDone)][-1]
    # 20 rows less the 8 of the first two steps, in 1.01 s; in the moment since step 4 they would be 800 a second.
    assert (last.step, last.samples_per_second) == (6, pytest.approx(12 / 1.01))


def test_the_last_step_is_always_told(world: World) -> None:
    world.agents()
    world.submit()
    world.bring_to(JobState.FINISHING)
    steps = [each.body.step for each in world.events["job"] if isinstance(each.body, StepDone)]
    assert steps == [6]


def test_a_step_never_goes_back_nor_past_the_end(world: World) -> None:
    world.agents()
    world.submit()
    world.bring_to(JobState.RUNNING)
    lease = world.lease(WORKER, 0)
    world.report(lease, step=4)
    world.report(lease, step=2)
    assert lease.step == 4
    world.report(lease, metrics=[MetricReport(split="train", step=5, samples=1, sums={})])
    assert lease.step == 5, "a metric tells of its step as well"
    world.report(lease, step=99)
    assert lease.step == 6


def test_an_agent_that_registers_anew_replaces_itself(world: World) -> None:
    world.agent(WORKER, "worker-0", pid=7)
    world.agent(SHARD, "shard-0")
    world.submit(plan(workers=1))
    world.agent(WORKER, "worker-0", pid=7)
    assert world.jobs["job"].reason == "worker-0 (worker 0) was lost: it registered anew, before the first step"
    found = [(agent.name, agent.state) for agent in world.controller.agents(world.now)]
    assert sorted(found) == [("shard-0", AgentState.ALIVE), ("worker-0", AgentState.ALIVE)], "it is listed once"


def test_agents_of_one_name_and_different_processes_live_side_by_side(world: World) -> None:
    world.agent(WORKER, "worker-0", pid=7)
    world.agent(WORKER, "worker-0", pid=8)
    assert [agent.state for agent in world.controller.agents(world.now)] == [AgentState.ALIVE] * 2


def test_an_agent_that_takes_leave_is_lost_at_once_and_a_job_that_survives_no_loss_waits_for_another(
    world: World,
) -> None:
    workers, _ = world.agents()
    world.submit(plan(max_restarts=0))
    world.bring_to(JobState.RUNNING)
    world.carry_out(world.controller.leave(workers[1], world.now))
    job = world.jobs["job"]
    assert (job.state, job.restarts) == (JobState.RECOVERING, 0)
    assert (job.reason or "").startswith("needs 2 workers; 1 is registered, 1 is free: ")


def test_a_waiting_job_starts_when_another_ends(world: World) -> None:
    world.agents()
    world.submit(job="first")
    world.submit(job="second")
    assert world.jobs["second"].reason == "needs 2 workers; 2 are registered, 0 are free: it starts when other jobs end"
    world.bring_to(JobState.SUCCEEDED, "first")
    assert world.jobs["second"].state is JobState.STARTING


def test_a_shard_serves_several_jobs_and_loses_only_those_it_held(world: World) -> None:
    workers, shards = world.agents(workers=2, shards=1)
    world.submit(plan(workers=1), "one")
    world.submit(plan(workers=1), "two")
    assert len(world.orders(shards[0]).allocations) == 2
    world.tick(5.2, alive=workers)
    assert {world.jobs[job].state for job in ("one", "two")} == {JobState.FAILED}


def test_orders_get_a_new_version_whenever_they_change(world: World) -> None:
    workers, shards = world.agents(workers=1)
    before = world.orders(shards[0])
    world.submit(plan(workers=1))
    during = world.orders(shards[0])
    world.carry_out(world.controller.cancel("job", "by alice", world.now))
    after = world.orders(shards[0])
    assert before.version < during.version < after.version
    assert (len(before.allocations), len(during.allocations), len(after.allocations)) == (0, 1, 0)
    assert workers


def test_no_more_agents_register_than_there_is_room_for_but_one_that_begins_anew_does() -> None:
    world = World(limits=Limits(most_agents=2, lost_after_s=5.0))
    world.agent(WORKER, "worker-0", pid=1)
    world.agent(WORKER, "worker-1", pid=2)
    with pytest.raises(FullError, match="there are 2 agents already"):
        world.agent(WORKER, "worker-2", pid=3)
    again = world.agent(WORKER, "worker-1", pid=2)
    world.tick(5.0, alive=[again])
    world.agent(WORKER, "worker-2", pid=3)


def test_there_is_room_for_a_job_again_once_another_has_ended() -> None:
    world = World(limits=Limits(most_jobs=1))
    world.controller.check_room("mine")
    world.submit()
    with pytest.raises(FullError, match="there are 1 jobs already"):
        world.controller.check_room("mine")
    world.carry_out(world.controller.cancel("job", "by alice", world.now))
    world.controller.check_room("mine")


def test_a_quarter_of_the_jobs_is_left_to_other_projects() -> None:
    world = World(limits=Limits(most_jobs=4))
    for name in "abc":
        world.submit(job=name)
    with pytest.raises(FullError, match=r"there are 3 jobs of project default already"):
        world.controller.check_room("default")
    world.controller.check_room("other")


class Looked:
    """Counts what the controller looks at."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.at: list[str] = []
        drain, write, matched = JobRun.drain, Lease.write, schedule

        def drained(run: JobRun) -> list[Instruction]:
            self.at.append(run.job.id)
            return drain(run)

        def written(lease: Lease, parts: Parts) -> None:
            self.at.append(lease.who)
            write(lease, parts)

        def scheduled(view: View, now: float) -> Decision:
            self.at.append("everything")
            return matched(view, now)

        patch.setattr(JobRun, "drain", drained)
        patch.setattr(Lease, "write", written)
        patch.setattr("weft_server.control.controller.schedule", scheduled)

    def since(self) -> list[str]:
        """Jobs, leases and schedules that were looked at since the last call."""
        out, self.at = self.at, []
        return out


def test_a_fact_is_looked_at_where_it_belongs_and_nowhere_else(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    workers, shards = world.agents(workers=6)
    everybody = [*workers, *shards]
    for job in ("one", "two", "three"):
        world.submit(plan(), job)
        world.bring_to(JobState.RUNNING, job)
    world.submit(plan(), "waiting")
    world.tick(0.2, alive=everybody)
    looked = Looked(monkeypatch)
    world.report(world.lease(WORKER, 1, "two"), step=1)
    assert looked.since() == ["two", "worker-3 (worker 1)"]
    world.tick(0.2, alive=everybody)
    assert looked.since() == []
    world.report(world.lease(WORKER, 0, "two"), step=1)
    world.tick(1.0, alive=everybody)
    assert looked.since() == ["two", "worker-2 (worker 0)", "two"], "progress is due for one of the jobs"
    world.carry_out(world.controller.cancel("two", "by alice", world.now))
    assert looked.since().count("everything") == 1
    assert world.jobs["waiting"].state is JobState.STARTING


def test_what_waits_is_matched_again_when_agents_or_jobs_change_and_when_patience_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers, shards = world.agents(workers=2)
    world.submit(plan(workers=1), "holder")
    world.bring_to(JobState.RUNNING, "holder")
    world.submit(plan(workers=2), "large")
    world.tick(0.2, alive=[*workers, *shards])
    looked = Looked(monkeypatch)
    world.tick(PATIENCE_S - 1.0, alive=[*workers, *shards])
    assert looked.since() == []
    world.tick(1.0, alive=[*workers, *shards])
    assert looked.since() == ["everything"]
    world.submit(plan(workers=1), "small")
    assert "kept for job large" in (world.jobs["small"].reason or "")
    looked.since()
    world.carry_out(world.controller.cancel("large", "by alice", world.now))
    assert "everything" in looked.since()
    assert world.jobs["small"].state is JobState.STARTING


def test_a_job_that_is_cancelled_says_how_far_it_came_and_by_whom(world: World) -> None:
    world.agents()
    world.submit()
    world.bring_to(JobState.RUNNING)
    world.all_report(WORKER, None, step=4, traffic={"sent_bytes": 7, "received_bytes": 5})  # type: ignore[arg-type]
    world.carry_out(world.controller.cancel("job", "by alice", world.now))
    ended = world.jobs["job"]
    assert (ended.reason, ended.progress.step, ended.traffic.sent_bytes) == ("by alice", 4, 14)


def test_a_job_that_diverged_says_since_when(world: World) -> None:
    world.agents()
    world.submit()
    world.bring_to(JobState.RUNNING)
    for step, loss in ((1, float("nan")), (2, 1.0), (3, float("nan")), (4, float("nan"))):
        sums = {"loss": loss, "accuracy": 1.0}
        world.all_report(WORKER, None, metrics=[MetricReport(split="train", step=step, samples=1, sums=sums)])  # type: ignore[arg-type]
    world.all_report(WORKER, AllocationEvent.DONE, step=6)
    world.keep()
    assert world.jobs["job"].state is JobState.SUCCEEDED
    assert world.jobs["job"].reason == "trained, but train/loss is nan since step 3"


def test_metrics_that_the_job_has_not_are_left_out_and_told_of_once(world: World) -> None:
    world.agents()
    world.submit(plan(metric_names=["loss"]))
    world.bring_to(JobState.RUNNING)
    for step in (1, 2):
        false = MetricReport(
            split="train", step=step, samples=1, sums={"loss": 2.0, "x" * 128: 1.0}, not_finite={"forged": 1}
        )
        world.all_report(WORKER, None, metrics=[false])  # type: ignore[arg-type]
    assert world.jobs["job"].metrics == {"train/loss": 2.0}
    told = [line for line in world.said() if "metrics that the job has not" in line]
    assert told == [
        f"worker-0 (worker 0) reports metrics that the job has not, {'x' * 128!r}, 'forged': they are left out"
    ]


def test_a_stranger_of_the_same_name_and_process_id_replaces_nobody(world: World) -> None:
    from weft.api.agent import Registration

    def register(nonce: str | None) -> None:
        registration = Registration(kind=WORKER, name="worker-0", pid=1, nonce=nonce)
        world.carry_out(world.controller.register(registration, world.now)[1])

    for nonce in ("one", "one", "two", None):
        register(nonce)
    states = [agent.state for agent in world.controller.agents(world.now)]
    assert states == [AgentState.ALIVE] * 3, "the first one has registered twice"


def test_a_lost_agent_is_not_listed_with_jobs_that_have_ended(world: World) -> None:
    workers, shards = world.agents()
    world.submit()
    world.bring_to(JobState.RUNNING)
    world.tick(5.2, alive=[workers[0], *shards])
    assert world.jobs["job"].state is JobState.FAILED
    assert [agent.jobs for agent in world.controller.agents(world.now)] == [[], [], []]


def test_a_set_that_is_under_way_is_told_and_so_is_one_that_was_given_up(world: World) -> None:
    world.agents()
    world.submit()
    world.bring_to(JobState.RUNNING)
    number, instructions = world.controller.ask_set("job", Given(names=["w"], file="f"), world.now)
    world.carry_out(instructions)
    assert world.jobs["job"].reason == f"parameters are being set: set {number} of 'w'"
    world.carry_out(world.controller.withdraw_set("job", number, "nothing came", world.now))
    assert "may still hold later" in (world.jobs["job"].reason or "")
    assert "set 1 of 'w' was given up: nothing came" in world.said()[-1]
    run = world.controller.run_of("job")
    assert run is not None
    world.report(run.keeper, sets=[SetDone(number=number, step=3)])
    assert world.jobs["job"].reason is None
    assert "though it was given up, at step 3" in world.said()[-1]


@pytest.fixture
def encrypted(world: World) -> World:
    """A server that makes keys for jobs: "p" and "s" with a number."""
    numbers = count()

    def new_pair() -> CurvePair:
        number = next(numbers)
        return CurvePair(public=f"p{number:039d}", secret=f"s{number:039d}")

    world.controller = Controller(world.limits, lambda: f"a{next(numbers)}", new_pair)
    return world


def test_each_agent_is_told_its_own_secret_and_the_public_keys_of_the_others(encrypted: World) -> None:
    workers, shards = encrypted.agents(workers=2, shards=2)
    encrypted.submit(plan(workers=2, shards=2))
    encrypted.all_report(SHARD, AllocationEvent.READY)
    run = encrypted.controller.run_of("job")
    assert run is not None
    assert run.memory.keys is not None
    keys = run.memory.keys
    assert len({pair.secret for pair in [*keys.shards, keys.workers]}) == 3
    for number, shard in enumerate(shards):
        (told,) = encrypted.orders(shard).allocations
        assert isinstance(told, ShardAllocation)
        assert (told.curve, told.curve_clients) == (keys.shards[number], [keys.workers.public])
        assert told.store.curve_keys == [pair.public for pair in keys.shards]
        others = {keys.shards[1 - number].secret, keys.workers.secret}
        assert not any(secret in told.model_dump_json() for secret in others)
    for worker in workers:
        (slot,) = encrypted.orders(worker).allocations
        assert isinstance(slot, WorkerAllocation)
        assert slot.curve == keys.workers
        assert not any(pair.secret in slot.model_dump_json() for pair in keys.shards)
        assert keys.workers.secret not in repr(slot)


def test_no_secret_is_in_what_is_told_of_a_job(encrypted: World) -> None:
    encrypted.agents()
    encrypted.submit()
    encrypted.bring_to(JobState.SUCCEEDED)
    told = [encrypted.jobs["job"].model_dump_json(), *(each.model_dump_json() for each in encrypted.events["job"])]
    assert not any(f"s{number:039d}" in each for each in told for number in range(20))


def test_each_job_has_keys_of_its_own_and_none_where_links_are_plain(encrypted: World, world: World) -> None:
    encrypted.agents(workers=1)
    encrypted.submit(plan(workers=1), job="one")
    one = encrypted.controller.run_of("one")
    assert one is not None
    first = one.memory.keys
    encrypted.bring_to(JobState.SUCCEEDED, job="one")
    encrypted.submit(plan(workers=1), job="two")
    two = encrypted.controller.run_of("two")
    assert two is not None
    assert first is not None
    assert two.memory.keys is not None
    assert two.memory.keys != first
    plain = World()
    plain.agents(workers=1)
    plain.submit(plan(workers=1))
    (told,) = plain.orders(plain.lease(SHARD, 0).agent).allocations
    assert (told.curve, told.store.curve_keys) == (None, [])
