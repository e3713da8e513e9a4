"""Agents as the control plane knows them, and who holds which place of a job. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from weft.api.agent import AgentInfo, AgentKind, CurvePair, Registration, Report
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
from weft_server.control.clock import Timestamp
from weft_server.control.memory import LEASE, AgentMemory, JobKeys, LeaseMemory, Parts, RunMemory, under
from weft_server.control.scheduler import Placement
from weft_server.refusals import IllegalReportError, NotKeeperError, StaleTermError

NewPair = Callable[[], CurvePair]
"""Makes a pair of CURVE keys that nobody else has."""

STARTED = frozenset({AllocationState.RUNNING, AllocationState.DONE})
"""States of a worker that has begun: a fast one may be done before the last has begun."""

_TCP = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\[\]/:@\s]+):(?P<port>[0-9]{1,5})")
_IPC = re.compile(r"ipc://[^\s*]{1,107}")
"""A socket's path has at most 107 bytes."""


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

    def write(self, parts: Parts) -> None:
        """Writes down what has changed."""
        facts = (self.state, self.seq, self.step, self.told, self.traffic)

        def document() -> str:
            return LeaseMemory(**{name: getattr(self, name) for name in LeaseMemory.model_fields}).model_dump_json()

        parts.put(LEASE + self.id, facts, document)

    @property
    def who(self) -> str:
        """`worker-1 (worker 1)`, `shard-0 (shard 0)`: the agent, and what it is in the job."""
        return f"{self.agent_name} ({self.source})"

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

    def check_held(self, term: int) -> None:
        """Raises StaleTermError unless it is held under that term. At a job's end none is."""
        if term != self.term:
            raise StaleTermError(f"{self.who} holds term {self.term} of allocation {self.id}, not {term}")
        if not self.is_held:
            raise StaleTermError(f"allocation {self.id} of {self.who} was released")


def process_of(registration: Registration) -> tuple[AgentKind, str, int, str | None]:
    """Name and process id alone may be another's too: every container's first process is 1."""
    return registration.kind, registration.name, registration.pid, registration.nonce


@dataclass
class Agent:
    """A registered daemon. `version` counts its orders; `leases` are those it has not been told to drop.

    The first version of a server's process is above all of those before it: see `Records.begin`.
    """

    memory: AgentMemory
    """What is written down of it."""
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
    def id(self) -> str:
        return self.memory.id

    @property
    def registration(self) -> Registration:
        return self.memory.registration

    @property
    def name(self) -> str:
        return self.memory.registration.name

    def apply(self, event: AgentEvent) -> None:
        self.state = after(AGENT_TRANSITIONS, self.state, event)

    def describe(self, now: Timestamp) -> AgentInfo:
        return AgentInfo(
            id=self.id,
            kind=self.registration.kind,
            name=self.name,
            pid=self.registration.pid,
            state=self.state,
            registered_at=self.memory.registered_at,
            silent_s=round(max(0.0, now.seconds - self.heard), 3),
            device=self.registration.device,
            jobs=sorted({lease.job for lease in self.leases.values()}),
        )


class Leases:
    """Every lease of a job; none before it is placed. What an earlier process has written down is taken up."""

    def __init__(self, job: str, memory: RunMemory, written: Mapping[str, str]) -> None:
        self._job = job
        self._memory = memory
        self._ordered: set[str] = set()
        self._changed: dict[str, Lease] = {}
        self._freed: list[Lease] = []
        self._gone: list[Lease] = []
        """Leases of before the job was placed anew, that are written down still."""
        kept = [LeaseMemory.model_validate_json(document) for _, document in under(written, LEASE)]
        self.by_id: dict[str, Lease] = {
            each.id: Lease(job=job, **dict(each), changed=self._changed)
            for each in sorted(kept, key=lambda lease: (lease.kind, lease.place))
        }

    @property
    def keeper(self) -> Lease | None:
        """The worker that brings and sets parameters."""
        return None if self._memory.keeper is None else self.by_id[self._memory.keeper]

    @property
    def vacant(self) -> dict[int, Lease]:
        """By slot: the leases of workers that were lost, until others take them over."""
        return {lease.place: lease for lease in self.workers if lease.place in self._memory.vacant}

    @property
    def workers(self) -> list[Lease]:
        """By slot."""
        return [lease for lease in self.by_id.values() if lease.kind is AgentKind.WORKER]

    @property
    def shards(self) -> list[Lease]:
        """By shard number."""
        return [lease for lease in self.by_id.values() if lease.kind is AgentKind.SHARD]

    @property
    def step(self) -> int:
        """Steps that the slowest worker has finished."""
        return min((worker.step for worker in self.workers), default=0)

    @property
    def traffic(self) -> Traffic:
        """Of all workers so far, also those whose places others have now."""
        return _added([self._memory.traffic, *(worker.traffic for worker in self.workers)])

    @property
    def workers_are_done(self) -> bool:
        """A worker lost after its last step was released, and has done its part."""
        return not self._memory.vacant and all(
            each.state in {AllocationState.DONE, AllocationState.RELEASED} for each in self.workers
        )

    @property
    def shards_are_ready(self) -> bool:
        return all(shard.state is AllocationState.READY for shard in self.shards)

    def fill(
        self,
        placement: Placement,
        agents: Callable[[str], Agent],
        term: int,
        new_pair: NewPair | None = None,
    ) -> None:
        """Gives every place to an agent, and keys of its own to the job, where there is who makes them."""
        for kind, ids in ((AgentKind.SHARD, placement.shards), (AgentKind.WORKER, placement.workers)):
            for place, agent_id in enumerate(ids):
                agent = agents(agent_id)
                identifier = f"{self._job}-{term}-{kind}-{place}"
                lease = Lease(
                    identifier,
                    term,
                    self._job,
                    agent.id,
                    agent.name,
                    kind,
                    place,
                    step=self._memory.first_step if kind is AgentKind.WORKER else 0,
                    changed=self._changed,
                )
                self.by_id[identifier] = agent.leases[identifier] = self._changed[identifier] = lease
        memory = self._memory
        memory.term, memory.endpoints = term, [""] * len(placement.shards)
        if new_pair is not None and placement.shards:
            memory.keys = JobKeys(shards=[new_pair() for _ in placement.shards], workers=new_pair())
        memory.keeper = self.workers[placement.keeper].id

    def vacate(self, lease: Lease) -> None:
        """A worker was lost: its slot waits for another."""
        if lease.is_held:
            lease.apply(AllocationEvent.RELEASED)
        self._ordered.add(lease.agent)
        self._memory.vacant = sorted({*self._memory.vacant, lease.place})

    def refill(self, placement: Placement, agents: Callable[[str], Agent]) -> list[Lease]:
        """Gives the vacant slots to other agents, which are told: the new leases."""
        found = []
        for agent_id, (slot, lost) in zip(placement.workers, sorted(self.vacant.items()), strict=True):
            agent, incarnation = agents(agent_id), lost.incarnation + 1
            identifier = f"{self._job}-{lost.term}-{AgentKind.WORKER}-{slot}-{incarnation}"
            lease = replace(
                lost,
                id=identifier,
                agent=agent.id,
                agent_name=agent.name,
                state=AllocationState.ASSIGNED,
                seq=0,
                told=False,
                incarnation=incarnation,
                traffic=Traffic(),
            )
            self.by_id = {
                (identifier if each is lost else name): (lease if each is lost else each)
                for name, each in self.by_id.items()
            }
            agent.leases[identifier] = self._changed[identifier] = lease
            self._changed.pop(lost.id, None)
            self._gone.append(lost)
            self._memory.traffic = _added([self._memory.traffic, lost.traffic])
            if lost.id == self._memory.keeper:
                self._memory.keeper = lease.id
            found.append(lease)
        self._memory.vacant = []
        self.tell(found)
        return found

    def take_endpoint(self, shard: Lease, endpoint: str | None, *, is_ready: bool) -> None:
        """A shard that is ready says where workers reach it; they are told with their allocations. Raises
        IllegalReportError."""
        if not is_ready:
            raise IllegalReportError(f"{shard.who}: `endpoint` belongs to a shard's report that it is ready")
        if endpoint is None:
            raise IllegalReportError(f"{shard.who} is ready and gives no `endpoint` that workers could reach")
        if fault := endpoint_fault(endpoint):
            raise IllegalReportError(f"{shard.who}: endpoint {endpoint!r} {fault}")
        before = self._memory.endpoints
        self._memory.endpoints = [endpoint if number == shard.place else old for number, old in enumerate(before)]

    def write(self, parts: Parts) -> None:
        """Writes down what has changed."""
        for lease in self._changed.values():
            lease.write(parts)
            if not lease.is_held:
                self._freed.append(lease)
        self._changed.clear()
        for lease in self._gone:
            parts.drop(LEASE + lease.id)
            self._freed.append(lease)
        self._gone.clear()

    def check_keeper(self, lease: Lease, term: int, verb: str) -> None:
        """Raises StaleTermError, or NotKeeperError for another agent than the keeper; `verb` is what it would do."""
        lease.check_held(term)
        if lease.id != self._memory.keeper:
            keeper = self.keeper.who if self.keeper else "nobody"
            raise NotKeeperError(f"{lease.who} is not to {verb} parameters: {keeper} is")

    def tell(self, leases: Iterable[Lease]) -> None:
        """Their agents' orders hold them from now on."""
        for lease in leases:
            if not lease.told:
                lease.told, self._changed[lease.id] = True, lease
                self._ordered.add(lease.agent)

    def order(self, leases: Iterable[Lease]) -> None:
        """What their agents are to do has changed."""
        self._ordered.update(lease.agent for lease in leases)

    def order_keeper(self) -> None:
        """What the keeper is to do has changed."""
        if self.keeper is not None:
            self.order([self.keeper])

    def release(self) -> None:
        """Nobody holds a place any more."""
        for lease in self.by_id.values():
            if lease.is_held:
                lease.apply(AllocationEvent.RELEASED)
            self._ordered.add(lease.agent)

    def clear(self) -> None:
        """Releases every place, and forgets who held it: the job is placed anew."""
        self.release()
        self._gone += self.by_id.values()
        memory = self._memory
        memory.traffic, self.by_id = self.traffic, {}
        memory.keeper, memory.endpoints, memory.keys, memory.vacant = None, [], None, []
        self._changed.clear()

    def drain(self) -> list[str]:
        """Agents whose orders have changed since the last call."""
        out, self._ordered = sorted(self._ordered), set()
        return out

    def freed(self) -> list[Lease]:
        """Leases that were found released when they were written down, since the last call."""
        out, self._freed = self._freed, []
        return out


def _added(told: Sequence[Traffic]) -> Traffic:
    return Traffic(
        sent_bytes=sum(each.sent_bytes for each in told), received_bytes=sum(each.received_bytes for each in told)
    )


def endpoint_fault(endpoint: str) -> str | None:
    """What is wrong with it, as words behind its name; None where a worker can connect to it."""
    if _IPC.fullmatch(endpoint):
        return None
    found = _TCP.fullmatch(endpoint)
    if found is None:
        return "is neither tcp://HOST:PORT nor ipc://PATH"
    if not 0 < int(found["port"]) < 1 << 16:
        return "has no port that can be connected to"
    if found["host"] == "*" or _is_unspecified(found["host"].strip("[]")):
        return "names every address of a machine, not one that workers can reach"
    return None


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False  # a name
