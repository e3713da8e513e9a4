"""What the mind knows of an agent, and of one agent's place in a job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from weft.api.agent import AgentInfo, AgentKind, Registration, Report
from weft.api.job import Traffic
from weft.api.lifecycle import (
    AGENT_TRANSITIONS,
    ALLOCATION_TRANSITIONS,
    AgentEvent,
    AgentState,
    AllocationEvent,
    AllocationState,
    after,
)
from weft_server.control.clock import Moment
from weft_server.control.memory import LEASE, AgentMemory, LeaseMemory, Parts


@dataclass
class Lease:
    """An allocation: one agent's place in one job, under a term."""

    id: str
    term: int
    job: str
    agent: str
    agent_name: str
    kind: AgentKind
    place: int
    """The slot of a worker, the number of a shard."""
    state: AllocationState = AllocationState.ASSIGNED
    seq: int = 0
    """The newest report that was taken."""
    step: int = 0
    told: bool = False
    """Whether the agent's orders hold it; workers are told once every shard is ready."""
    incarnation: int = 1
    """Of a worker: counts the processes that its slot has had in this term."""
    traffic: Traffic = field(default_factory=Traffic)
    """Of this place since its start, as it was reported last."""
    is_silent: bool = False
    """Whether its job was told that the agent is silent, and waits for it."""
    changed: dict[str, Lease] = field(default_factory=dict, repr=False, compare=False)
    """Leases of the same job that have changed since they were written down, this one among them if it has."""

    @classmethod
    def restored(cls, job: str, memory: LeaseMemory, changed: dict[str, Lease]) -> Self:
        """As an earlier process has written it down."""
        return cls(job=job, **dict(memory), changed=changed)

    def write(self, parts: Parts) -> None:
        """Writes down what has changed."""
        facts = (self.state, self.seq, self.step, self.told, self.traffic)
        parts.put(LEASE + self.id, facts, lambda: self._memory().model_dump_json())

    def _memory(self) -> LeaseMemory:
        return LeaseMemory(**{name: getattr(self, name) for name in LeaseMemory.model_fields})

    @property
    def who(self) -> str:
        """`worker-1 (slot 1)`, `shard-0 (shard 0)`."""
        return f"{self.agent_name} ({'slot' if self.kind is AgentKind.WORKER else 'shard'} {self.place})"

    @property
    def source(self) -> str:
        """What its log lines are marked with: `worker 1`, `shard 0`."""
        return f"{self.kind} {self.place}"

    @property
    def is_held(self) -> bool:
        return self.state is not AllocationState.RELEASED

    def apply(self, event: AllocationEvent) -> None:
        """Moves on. Raises IllegalTransitionError and changes nothing where the table has no such event."""
        self.state = after(ALLOCATION_TRANSITIONS, self.state, event)
        self.changed[self.id] = self

    def take(self, report: Report, steps: int) -> None:
        """What a report tells beside its event: its number, the newest step up to `steps`, bytes at the sockets."""
        told = [metric.step for metric in report.metrics] + ([] if report.step is None else [report.step])
        self.seq = report.seq
        self.step = max(self.step, min(max(told, default=0), steps))
        self.traffic = self.traffic if report.traffic is None else report.traffic
        self.changed[self.id] = self

    def tell(self) -> bool:
        """Its agent's orders hold it from now on: whether that is new."""
        was_told, self.told = self.told, True
        self.changed[self.id] = self
        return not was_told


def process_of(registration: Registration) -> tuple[AgentKind, str, int, str | None]:
    """Name and process id alone may be another's too: every container's first process is 1."""
    return registration.kind, registration.name, registration.pid, registration.nonce


@dataclass
class Agent:
    """A registered daemon. `version` counts its orders; `leases` are those it has not been told to drop.

    The first version of a server's process is above all of those before it: see `Records.begin`.
    """

    id: str
    number: int
    """Counts registrations: the older of two equals comes first."""
    registration: Registration
    registered: Moment
    heard: float
    """Seconds of the last heartbeat's arrival."""
    version: int
    state: AgentState = AgentState.ALIVE
    hung_up: bool = False
    """Whether its connection ended in the middle of a heartbeat and it has not called since: a process that lives calls
    again at once."""
    leases: dict[str, Lease] = field(default_factory=dict)
    uploads: set[str] = field(default_factory=set)
    """Leases whose parameters are wanted at once."""

    @property
    def name(self) -> str:
        return self.registration.name

    @property
    def may_be_dead(self) -> bool:
        """Whether another process that has its name is its successor, rather than another agent."""
        return self.hung_up or self.state is AgentState.SUSPECTED

    @property
    def process(self) -> tuple[AgentKind, str, int, str | None]:
        """What one that registers anew has in common with itself."""
        return process_of(self.registration)

    def apply(self, event: AgentEvent) -> None:
        self.state = after(AGENT_TRANSITIONS, self.state, event)

    @classmethod
    def restored(cls, memory: AgentMemory, heard: float, version: int) -> Self:
        """As an earlier process has written it down. It is suspected until it calls, and silent from `heard` on."""
        registered = Moment(memory.registered_at, heard)
        state = AgentState.SUSPECTED
        return cls(memory.id, memory.number, memory.registration, registered, heard, version, state)

    def memory(self) -> AgentMemory:
        """What is written down of it."""
        return AgentMemory(
            id=self.id, number=self.number, registration=self.registration, registered_at=self.registered.at
        )

    def describe(self, now: Moment) -> AgentInfo:
        return AgentInfo(
            id=self.id,
            kind=self.registration.kind,
            name=self.name,
            pid=self.registration.pid,
            state=self.state,
            registered_at=self.registered.at,
            silent_s=round(max(0.0, now.seconds - self.heard), 3),
            jobs=sorted({lease.job for lease in self.leases.values()}),
        )
