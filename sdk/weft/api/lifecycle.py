"""One transition table per lifecycle: job, agent (worker or shard), allocation. Server, SDK and docs read these.

A table maps (state, event) to the state that follows. An event that the table lacks is illegal in that state: `after`
raises and nothing has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeVar


class JobState(StrEnum):
    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    FINISHING = "finishing"
    RECOVERING = "recovering"
    STOPPING = "stopping"
    SCALING = "scaling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}

    @property
    def is_waiting(self) -> bool:
        """Whether it holds no agents and waits for some."""
        return self in {JobState.PENDING, JobState.RECOVERING, JobState.STOPPING, JobState.SCALING}

    @property
    def told(self) -> str:
        """The state as a predicate: `is running`, `has failed`, `was cancelled`."""
        verbs = {JobState.SUCCEEDED: "has", JobState.FAILED: "has", JobState.CANCELLED: "was"}
        return f"{verbs.get(self, 'is')} {self.value}"


class JobEvent(StrEnum):
    PLACED = "placed"
    """Workers and shards were found for every slot."""
    STARTED = "started"
    """Every worker has bound its program and runs."""
    TRAINED = "trained"
    """Every worker has done its last step; the parameters are on their way to the server."""
    KEPT = "kept"
    """The server has the final parameters."""
    LOST = "lost"
    """A process of the job died, or its agent is gone; the job goes on, on other agents or the same."""
    STOPPED = "stopped"
    """The job ends before its last step; it is placed once more, to bring what it has trained."""
    SCALED = "scaled"
    """The job goes on from its newest snapshot, on other numbers of workers and shards."""
    FAILED = "failed"
    CANCELLED = "cancelled"


class AllocationState(StrEnum):
    """An allocation is a lease of one agent for one place in a job."""

    ASSIGNED = "assigned"
    READY = "ready"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    RELEASED = "released"


class AllocationEvent(StrEnum):
    READY = "ready"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    RELEASED = "released"


class AgentState(StrEnum):
    """An agent is a worker or shard daemon that has registered."""

    ALIVE = "alive"
    SUSPECTED = "suspected"
    """It was not heard for a while: it gets no new work, and its jobs wait for it."""
    LOST = "lost"


class AgentEvent(StrEnum):
    HEARD = "heard"
    SILENT = "silent"
    """Some heartbeats are missing: it may be frozen, cut off or dead."""
    GONE = "gone"
    """It took leave, its process is known to be dead, or it was waited for in vain."""


J, JE = JobState, JobEvent
JOB_TRANSITIONS: Final[Mapping[tuple[JobState, JobEvent], JobState]] = MappingProxyType(
    {
        (J.PENDING, JE.PLACED): J.STARTING,
        (J.PENDING, JE.FAILED): J.FAILED,
        (J.PENDING, JE.CANCELLED): J.CANCELLED,
        (J.STARTING, JE.STARTED): J.RUNNING,
        (J.STARTING, JE.FAILED): J.FAILED,
        (J.STARTING, JE.CANCELLED): J.CANCELLED,
        (J.RUNNING, JE.TRAINED): J.FINISHING,
        (J.RUNNING, JE.KEPT): J.SUCCEEDED,
        (J.RUNNING, JE.FAILED): J.FAILED,
        (J.RUNNING, JE.CANCELLED): J.CANCELLED,
        (J.FINISHING, JE.KEPT): J.SUCCEEDED,
        (J.FINISHING, JE.FAILED): J.FAILED,
        (J.FINISHING, JE.CANCELLED): J.CANCELLED,
        (J.STARTING, JE.LOST): J.RECOVERING,
        (J.RUNNING, JE.LOST): J.RECOVERING,
        (J.FINISHING, JE.LOST): J.RECOVERING,
        (J.RECOVERING, JE.PLACED): J.STARTING,
        (J.RECOVERING, JE.FAILED): J.FAILED,
        (J.RECOVERING, JE.CANCELLED): J.CANCELLED,
        (J.RUNNING, JE.STOPPED): J.STOPPING,
        (J.STOPPING, JE.PLACED): J.STARTING,
        (J.STOPPING, JE.FAILED): J.FAILED,
        (J.STOPPING, JE.CANCELLED): J.CANCELLED,
        (J.RUNNING, JE.SCALED): J.SCALING,
        (J.SCALING, JE.PLACED): J.STARTING,
        (J.SCALING, JE.FAILED): J.FAILED,
        (J.SCALING, JE.CANCELLED): J.CANCELLED,
    }
)

L, LE = AllocationState, AllocationEvent
ALLOCATION_TRANSITIONS: Final[Mapping[tuple[AllocationState, AllocationEvent], AllocationState]] = MappingProxyType(
    {
        (L.ASSIGNED, LE.READY): L.READY,
        (L.ASSIGNED, LE.FAILED): L.FAILED,
        (L.ASSIGNED, LE.RELEASED): L.RELEASED,
        (L.READY, LE.RUNNING): L.RUNNING,
        (L.READY, LE.FAILED): L.FAILED,
        (L.READY, LE.RELEASED): L.RELEASED,
        (L.RUNNING, LE.DONE): L.DONE,
        (L.RUNNING, LE.FAILED): L.FAILED,
        (L.RUNNING, LE.RELEASED): L.RELEASED,
        (L.DONE, LE.RELEASED): L.RELEASED,
        (L.FAILED, LE.RELEASED): L.RELEASED,
    }
)

AGENT_TRANSITIONS: Final[Mapping[tuple[AgentState, AgentEvent], AgentState]] = MappingProxyType(
    {
        (AgentState.ALIVE, AgentEvent.HEARD): AgentState.ALIVE,
        (AgentState.ALIVE, AgentEvent.SILENT): AgentState.SUSPECTED,
        (AgentState.SUSPECTED, AgentEvent.HEARD): AgentState.ALIVE,
        (AgentState.ALIVE, AgentEvent.GONE): AgentState.LOST,
        (AgentState.SUSPECTED, AgentEvent.GONE): AgentState.LOST,
    }
)
"""A lost agent stays lost: when it comes back, it registers as a new one."""

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)


class IllegalTransitionError(Exception):
    """The table has no such event in this state."""


def after(table: Mapping[tuple[S, E], S], state: S, event: E) -> S:
    """The state that follows. Raises IllegalTransitionError, naming both."""
    following = table.get((state, event))
    if following is None:
        raise IllegalTransitionError(f"{type(state).__name__} {state.value!r} knows no event {event.value!r}")
    return following
