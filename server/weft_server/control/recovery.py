"""What the loss of a process means for its job, and who has missed a deadline. Pure functions.

A worker's slot is handed over where another can go on in it while all others stay. Otherwise every lease is released,
and the job goes on from its newest snapshot, or begins again: what it computes depends on the job alone, so its result
is what it would have been. Where that does not hold, or the job has gone on `max_restarts` times, it fails. Once the
server has the final values, it succeeds instead, and is not trained again for a part of its last evaluation alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.api.agent import AgentKind
from weft.api.job import Job
from weft.api.lifecycle import AllocationState, JobState
from weft_server.control.leases import STARTED, Lease, Leases
from weft_server.control.limits import TimeLimits
from weft_server.control.memory import RunState


@dataclass(frozen=True, slots=True)
class Fail:
    """The job does not go on; it has succeeded where the server has its final values."""

    reason: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """Another worker takes the slot over."""

    restarts: int
    left: int
    """How often the job may go on after this loss."""


@dataclass(frozen=True, slots=True)
class PlaceAnew:
    """The job goes on from its newest snapshot, or begins again."""

    restarts: int
    left: int


def after_loss(
    state: RunState, job: Job, leases: Leases, lost: Lease, reason: str, *, counts: bool
) -> Fail | HandOver | PlaceAnew:
    """What follows from a loss. Others may be lost for want of one that was: that counts as the same loss. One that
    took leave by itself does not count."""
    plan, memory, before = state.plan, state.memory, job.restarts
    restarts = before + (counts and not memory.vacant)
    left = plan.max_restarts - restarts
    if left < 0:
        tried = f"; the job has gone on {before} times before (max_restarts)" if before else ""
        return Fail(f"{reason}{tried}")
    if _hands_over(state, job, leases, lost):
        return HandOver(restarts, left)
    if memory.has_final and plan.stop_when is None and plan.keep_best is None:
        return Fail(reason)
    if memory.newest is None and plan.resume is not None:
        return Fail(f"{reason}; the snapshot that it is to go on from cannot be used: {plan.resume.folder}")
    if not memory.can_go_on(memory.newest):
        return Fail(f"{reason}; its parameters were set while it ran, and no snapshot was taken since")
    return PlaceAnew(restarts, left)


def _hands_over(state: RunState, job: Job, leases: Leases, lost: Lease) -> bool:
    """Whether another worker can go on in that slot while all others stay."""
    memory = state.memory
    begins_with_given = memory.given is not None and bool(memory.given.names)
    may_lack_given = begins_with_given and memory.began_with is None and not leases.step
    return (
        state.plan.hands_slots_over
        and lost.kind is AgentKind.WORKER
        and job.state in {JobState.RUNNING, JobState.FINISHING}
        and not may_lack_given  # The keeper may not have set all first values.
    )


def is_dispensable(state: RunState, job: Job, lease: Lease) -> bool:
    """Whether the job's result does without it: its part is done, and it keeps nothing that the server lacks."""
    if lease.kind is AgentKind.SHARD:
        return job.state is JobState.FINISHING and state.memory.has_final
    return lease.state is AllocationState.DONE and (lease.id != state.memory.keeper or state.memory.has_final)


def overdue(state: JobState, leases: Leases, limits: TimeLimits) -> str:
    """Why a job whose deadline has passed fails: who has not done what."""
    if state is JobState.FINISHING and leases.keeper is not None:
        return f"{leases.keeper.who} did not bring the final parameters within {limits.keep_s:g} s"
    late = [lease for lease in leases.shards if lease.state is not AllocationState.READY]
    goal = "to be ready"
    if not late:
        late = [lease for lease in leases.workers if lease.state not in STARTED]
        goal = "to run"
    who = ", ".join(lease.who for lease in late)
    return f"not started within {limits.start_s:g} s: it waits for {who} {goal}"
