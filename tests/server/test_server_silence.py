"""Agents that are silent: suspected, waited for, heard again or lost. The time is the test's."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from server_control import World
from server_specs import plan
from weft.api.agent import AgentKind, WorkerAllocation
from weft.api.lifecycle import AgentState, AllocationEvent, JobState
from weft_server.control.clock import LONGEST_STEP_S, ProcessClock
from weft_server.control.limits import Limits, TimeLimits

WORKER, SHARD = AgentKind.WORKER, AgentKind.SHARD
ALIVE, SUSPECTED, LOST = AgentState.ALIVE, AgentState.SUSPECTED, AgentState.LOST


@pytest.fixture
def world() -> World:
    return World(Limits(suspected_after_s=5.0, lost_after_s=60.0))


def states(world: World) -> dict[str, AgentState]:
    return {agent.name: agent.state for agent in world.controller.agents(world.now)}


def test_a_silent_agent_is_suspected_and_waited_for_and_its_job_goes_on_when_it_is_heard(world: World) -> None:
    (frozen, other), shards = world.agents()
    world.submit()
    world.bring_to(JobState.RUNNING)
    world.tick(59.0, alive=[other, *shards])
    assert states(world) == {"worker-0": SUSPECTED, "worker-1": ALIVE, "shard-0": ALIVE}
    assert world.jobs["job"].state is JobState.RUNNING
    assert world.said()[-1] == "worker-0 (worker 0) has been silent for 5.0 s; it is waited for, up to 60 s"
    world.tick(0.2, alive=[frozen, other, *shards])
    assert set(states(world).values()) == {ALIVE}
    assert world.said()[-1] == "worker-0 (worker 0) is heard again after 59.2 s; the job goes on"
    world.tick(30.0, alive=[frozen, other, *shards])
    assert (world.jobs["job"].restarts, world.states()) == (0, ["pending", "starting", "running"])


def test_an_agent_that_is_waited_for_in_vain_is_lost_and_its_job_recovers(world: World) -> None:
    (_, other), shards = world.agents()
    world.submit(plan(max_restarts=1))
    world.bring_to(JobState.RUNNING)
    world.tick(60.2, alive=[other, *shards])
    assert states(world) == {"worker-0": LOST, "worker-1": ALIVE, "shard-0": ALIVE}
    assert world.jobs["job"].restarts == 1
    assert any(said.startswith("worker-0 (worker 0) was lost: silent for 60.0 s") for said in world.said())


def test_all_agents_that_were_silent_together_go_on_together(world: World) -> None:
    workers, shards = world.agents()
    world.submit()
    world.bring_to(JobState.RUNNING)
    world.tick(20.0)
    assert set(states(world).values()) == {SUSPECTED}
    world.tick(1.0, alive=[*workers, *shards])
    assert (set(states(world).values()), world.jobs["job"].state) == ({ALIVE}, JobState.RUNNING)


@pytest.mark.parametrize("slot", [0, 1])
def test_a_worker_that_is_silent_in_the_last_evaluation_costs_no_values_that_the_server_has(
    world: World, slot: int
) -> None:
    workers, shards = world.agents()
    world.submit()
    world.bring_to(JobState.RUNNING)
    world.keep()
    world.tick(30.0, alive=[*(each for each in workers if each != workers[slot]), *shards])
    assert world.jobs["job"].state is JobState.RUNNING
    world.tick(0.2, alive=[*workers, *shards])
    world.all_report(WORKER, AllocationEvent.DONE, step=6)
    assert (world.jobs["job"].state, world.jobs["job"].restarts) == (JobState.SUCCEEDED, 0)


@pytest.mark.parametrize("who", [(WORKER, 0), (WORKER, 1), (SHARD, 0)], ids=str)
@pytest.mark.parametrize("restarts", [0, 1])
def test_a_job_whose_final_values_the_server_has_succeeds_whoever_is_lost(
    world: World, who: tuple[AgentKind, int], restarts: int
) -> None:
    workers, shards = world.agents()
    world.submit(plan(max_restarts=restarts))
    world.bring_to(JobState.RUNNING)
    world.keep()
    lost = world.lease(*who)
    world.tick(60.2, alive=[each for each in (*workers, *shards) if each != lost.agent])
    job = world.jobs["job"]
    if restarts and lost.kind is WORKER:  # Another worker does its part of the last evaluation.
        assert (job.state, job.restarts) == (JobState.RUNNING, 1)
        world.agent(WORKER, "worker-2")
        world.report(world.lease(*who), AllocationEvent.FAILED, reason="killed too", lost=True)
        why = f"worker-2 (worker {lost.place}) failed at step 0 of 6: killed too; the job has gone on 1 times before"
    else:
        why = f"{lost.who} was lost: silent for 60.0 s, at step 0 of 6"
    job = world.jobs["job"]
    assert (job.reason or "").removesuffix(" (max_restarts)") == f"trained, but {why}"
    assert (job.state, world.closed, world.states()[-2:]) == (JobState.SUCCEEDED, ["job"], ["running", "succeeded"])


def test_a_suspected_agent_gets_no_new_work_and_the_job_that_waits_says_so(world: World) -> None:
    (first, second), shards = world.agents()
    world.tick(6.0, alive=[second, *shards])
    world.submit()
    assert world.jobs["job"].reason == "needs 2 workers; 1 is registered, 1 is free, 1 more is silent"
    world.tick(0.2, alive=[first, second, *shards])
    assert world.jobs["job"].state is JobState.STARTING


def test_a_job_that_starts_has_its_whole_time_once_a_silent_agent_is_heard() -> None:
    world = World(Limits(job=TimeLimits(start_s=10.0)))
    (frozen, other), shards = world.agents()
    world.submit()
    world.tick(50.0, alive=[other, *shards])
    assert world.jobs["job"].state is JobState.STARTING
    world.tick(9.0, alive=[frozen, other, *shards])
    assert world.jobs["job"].state is JobState.STARTING
    world.tick(2.0, alive=[frozen, other, *shards])
    assert (world.jobs["job"].reason or "").startswith("not started within 10 s")


def test_an_agent_that_has_hung_up_is_not_waited_for(world: World) -> None:
    (dead, other), shards = world.agents()
    world.tick(1.0, alive=[dead, other, *shards])
    world.controller.hung_up(dead)
    world.tick(5.2, alive=[other, *shards])
    assert states(world)["worker-0"] is LOST


def test_an_agent_that_hangs_up_and_calls_again_is_not_lost(world: World) -> None:
    (one, other), shards = world.agents()
    world.controller.hung_up(one)
    world.heard(one)
    world.tick(6.0, alive=[other, *shards])
    assert states(world)["worker-0"] is SUSPECTED


@pytest.mark.parametrize("how", ["hung up", "silent"])
def test_a_daemon_that_is_started_again_under_its_name_replaces_the_dead_one_at_once(world: World, how: str) -> None:
    (dead, other), shards = world.agents()
    world.submit(plan(max_restarts=1))
    world.bring_to(JobState.RUNNING)
    devices = {agent.id: agent.device for agent in world.controller.agents(world.now)}
    assert world.jobs["job"].devices == [devices[dead], devices[other]]
    if how == "hung up":
        world.controller.hung_up(dead)
    else:
        world.tick(5.2, alive=[other, *shards])
    new = world.agent(WORKER, "worker-0")
    devices |= {agent.id: agent.device for agent in world.controller.agents(world.now)}
    assert world.jobs["job"].devices == [devices[new], devices[other]] != [devices[dead], devices[other]]
    assert sorted(agent.state for agent in world.controller.agents(world.now) if agent.name == "worker-0") == [
        ALIVE,
        LOST,
    ]
    assert "worker-0 (worker 0) takes over" in world.said()[-1]


def test_a_daemon_that_was_dead_before_anybody_knew_is_lost_once_it_is_silent_and_has_a_successor(world: World) -> None:
    (dead, other), shards = world.agents()
    world.tick(1.0, alive=[dead, other, *shards])
    successor = world.agent(WORKER, "worker-0")
    assert dead in {agent.id for agent in world.controller.agents(world.now) if agent.state is ALIVE}
    world.tick(5.2, alive=[successor, other, *shards])
    assert {agent.id: agent.state for agent in world.controller.agents(world.now)}[dead] is LOST


def test_processes_of_a_job_wait_for_each_other_as_long_as_the_server_does(world: World) -> None:
    world.agents()
    world.submit()
    world.all_report(SHARD, AllocationEvent.READY)
    for kind in (WORKER, SHARD):
        (told,) = world.orders(world.lease(kind, 0).agent).allocations
        assert told.lost_after_s == 60.0
        assert isinstance(told, WorkerAllocation) == (kind is WORKER)


def test_time_in_which_nobody_read_the_clock_has_not_passed() -> None:
    read = [100.0]
    clock = ProcessClock(lambda: read[0], lambda: datetime(2030, 1, 1, tzinfo=UTC))
    began = clock().seconds
    for pause_s, passed in [(0.2, 0.2), (20.0, 0.2 + LONGEST_STEP_S), (0.5, 0.7 + LONGEST_STEP_S)]:
        read[0] += pause_s
        assert clock().seconds - began == pytest.approx(passed)
