"""A job that loses a process or an agent goes on with agents that live."""

from __future__ import annotations

import pytest

from server_control import World
from server_specs import plan
from weft.api.agent import AgentKind, MetricReport
from weft.api.event import MetricTaken
from weft.api.lifecycle import AllocationEvent, JobState
from weft_server.planning.plan import Given
from weft_server.refusals import UnknownError

WORKER, SHARD = AgentKind.WORKER, AgentKind.SHARD


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("who", "state"),
    [
        ((WORKER, 0), JobState.STARTING),  # Later another one takes the slot over: see test_server_takeover.
        ((SHARD, 0), JobState.STARTING),
        ((SHARD, 0), JobState.RUNNING),
        ((SHARD, 0), JobState.FINISHING),
    ],
    ids=str,
)
def test_a_job_whose_agent_is_lost_is_placed_on_those_that_live_and_succeeds(
    world: World, state: JobState, who: tuple[AgentKind, int]
) -> None:
    workers, shards = world.agents(workers=3, shards=2)
    world.submit(plan(max_restarts=1))
    world.bring_to(state)
    lost = world.lease(*who)
    alive = [agent for agent in (*workers, *shards) if agent != lost.agent]
    world.tick(5.2, alive=alive)
    assert world.states()[-2:] == ["recovering", "starting"]
    assert world.jobs["job"].restarts == 1
    again = world.lease(*who)
    assert (again.agent in alive, again.term > lost.term) == (True, True)
    with pytest.raises(UnknownError):
        world.report(lost, step=3)
    assert [one.term for agent in alive for one in world.orders(agent).allocations] == [again.term]  # The shard.
    world.bring_to(JobState.SUCCEEDED)
    assert any(said.startswith("the job begins again with step 0: ") for said in world.said())
    assert any(lost.who in (event.body.reason or "") for event in world.events["job"] if event.body.kind == "state")


def test_a_job_that_finds_no_agents_waits_for_them_and_says_so(world: World) -> None:
    workers, _ = world.agents()
    world.submit(plan(max_restarts=1))
    world.bring_to(JobState.RUNNING)
    world.tick(5.2, alive=[*workers[1:]])
    job = world.jobs["job"]
    assert (job.state, job.reason) == (
        JobState.RECOVERING,
        "needs 1 shard; 0 are registered: `weft up` starts its own again; otherwise start 1 more "
        "(python -m weft_kvstore --server URL)",
    )
    assert job.restarts == 1  # The worker and the shard were lost together.
    world.agent(SHARD, "shard-2")
    assert (
        world.jobs["job"].reason
        == "needs 2 workers; 1 is registered, 1 is free: `weft up` starts its own again; otherwise start 1 more "
        "(python -m weft_worker --server URL)"
    )
    world.agent(WORKER, "worker-2")
    assert world.jobs["job"].state is JobState.STARTING


def test_what_a_job_does_itself_is_not_tried_again_and_what_was_lost_is_so_often_as_it_says(world: World) -> None:
    world.agents()
    world.submit(plan(max_restarts=2), "own")
    world.bring_to(JobState.RUNNING, "own")
    world.report(world.lease(WORKER, 0, "own"), AllocationEvent.FAILED, reason="labels out of range")
    assert world.states("own")[-1] == "failed"
    world.submit(plan(max_restarts=2))
    for _ in range(2):
        world.report(world.lease(SHARD, 0), AllocationEvent.FAILED, reason="it was ended by SIGKILL", lost=True)
        assert world.states()[-2:] == ["recovering", "starting"]
    world.report(world.lease(SHARD, 0), AllocationEvent.FAILED, reason="it was ended by SIGKILL", lost=True)
    assert world.jobs["job"].state is JobState.FAILED
    assert (world.jobs["job"].reason or "").endswith("SIGKILL; the job has gone on 2 times before (max_restarts)")


def test_a_job_whose_parameters_were_set_while_it_ran_does_not_begin_again(world: World) -> None:
    world.agents()
    world.submit(plan(max_restarts=2))
    world.bring_to(JobState.RUNNING)
    number, instructions = world.controller.ask_set("job", Given(names=["w"], file="f"), world.now)
    world.carry_out(instructions)
    assert number == 1
    world.report(world.lease(SHARD, 0), AllocationEvent.FAILED, reason="killed", lost=True)
    assert "its parameters were set while it ran" in (world.jobs["job"].reason or "")


def test_metrics_that_were_told_are_not_told_again(world: World) -> None:
    world.agents()
    world.submit(plan(max_restarts=1))

    def measured(*steps: int) -> None:
        for step in steps:
            for slot in range(2):
                report = MetricReport(split="train", step=step, samples=4, sums={"loss": 4.0})
                world.report(world.lease(WORKER, slot), metrics=[report])

    world.bring_to(JobState.RUNNING)
    measured(1, 2)
    assert world.jobs["job"].metrics == {"train/loss": 1.0}
    world.report(world.lease(SHARD, 0), AllocationEvent.FAILED, reason="killed", lost=True)
    world.bring_to(JobState.RUNNING)
    assert world.jobs["job"].metrics == {}  # Those of the lost run are of steps that this one has not reached.
    measured(1)
    assert world.jobs["job"].metrics == {"train/loss": 1.0}
    measured(2, 3)
    assert [event.body.step for event in world.events["job"] if isinstance(event.body, MetricTaken)] == [1, 2, 3]


def test_a_server_that_starts_again_knows_a_job_that_recovers(world: World) -> None:
    _, shards = world.agents()
    world.submit(plan(max_restarts=3))
    world.bring_to(JobState.RUNNING)
    world.carry_out(world.controller.leave(shards[0], world.now, "its pod is drained"))
    assert world.jobs["job"].state is JobState.RECOVERING
    assert sorted(world.parts["job"]) == ["run"]
    world.begin_again(job_plan=plan(max_restarts=3))
    world.agents()
    assert world.jobs["job"].state is JobState.STARTING
    world.bring_to(JobState.SUCCEEDED)
    assert world.jobs["job"].restarts == 1


def test_a_job_that_gave_its_agents_up_to_go_on_has_them_again_before_a_job_that_waits(world: World) -> None:
    world.agents()
    world.submit(plan(max_restarts=1))
    world.bring_to(JobState.RUNNING)
    world.submit(plan(), "next")
    world.report(world.lease(SHARD, 0), AllocationEvent.FAILED, reason="killed", lost=True)
    assert (world.jobs["job"].state, world.jobs["next"].state) == (JobState.STARTING, JobState.PENDING)


def test_an_agent_that_is_ended_on_purpose_costs_none_of_the_restarts(world: World) -> None:
    workers, _ = world.agents(workers=3)
    world.submit(plan(max_restarts=1))
    world.bring_to(JobState.RUNNING)
    world.carry_out(world.controller.leave(workers[0], world.now))
    assert world.jobs["job"].restarts == 0
    world.carry_out(world.controller.leave(workers[1], world.now, "it was ended by SIGKILL"))
    assert world.jobs["job"].restarts == 1
