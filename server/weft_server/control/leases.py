"""The places of one job: which agent holds which, who keeps the parameters, whose orders have changed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from weft.api.agent import AgentKind, CurvePair
from weft.api.job import Traffic
from weft.api.lifecycle import AllocationEvent, AllocationState
from weft_server.control.lease import Agent, Lease
from weft_server.control.memory import LEASE, JobKeys, LeaseMemory, Parts, RunMemory, under
from weft_server.control.scheduler import Placement
from weft_server.refusals import NotKeeperError, StaleTermError

NewPair = Callable[[], CurvePair]
"""Makes a pair of CURVE keys that nobody else has."""


class Places:
    """Every lease of a job; none before it is placed. What an earlier process has written down is taken up."""

    def __init__(self, job: str, memory: RunMemory, written: Mapping[str, str]) -> None:
        self._job = job
        self._ordered: set[str] = set()
        self._changed: dict[str, Lease] = {}
        self._freed: list[Lease] = []
        self._gone: list[Lease] = []
        """Leases of before the job was placed anew, that are written down still."""
        kept = [LeaseMemory.model_validate_json(document) for _, document in under(written, LEASE)]
        self.leases: dict[str, Lease] = {
            each.id: Lease.restored(job, each, self._changed)
            for each in sorted(kept, key=lambda lease: (lease.kind, lease.place))
        }
        self.term = memory.term
        self.keeper: Lease | None = None if memory.keeper is None else self.leases[memory.keeper]
        """The worker that brings and sets parameters."""
        self.endpoints = memory.endpoints
        """Where workers reach the shards: '' until each is ready."""
        self.keys = memory.keys
        """Of the links between them, where these are encrypted."""
        self.vacant = {lease.place: lease for lease in self.workers if lease.place in memory.vacant}
        """By slot: the leases of workers that were lost, until others take them over."""

    @property
    def workers(self) -> list[Lease]:
        """By slot."""
        return [lease for lease in self.leases.values() if lease.kind is AgentKind.WORKER]

    @property
    def shards(self) -> list[Lease]:
        """By shard number."""
        return [lease for lease in self.leases.values() if lease.kind is AgentKind.SHARD]

    @property
    def step(self) -> int:
        """Steps that the slowest worker has finished."""
        return min((worker.step for worker in self.workers), default=0)

    @property
    def traffic(self) -> Traffic:
        """Of all workers."""
        told = [worker.traffic for worker in self.workers]
        return Traffic(
            sent_bytes=sum(each.sent_bytes for each in told), received_bytes=sum(each.received_bytes for each in told)
        )

    @property
    def workers_are_done(self) -> bool:
        """A worker lost after its last step was released, and has done its part."""
        return not self.vacant and all(
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
        first_step: int = 0,
    ) -> None:
        """Gives every place to an agent, and keys of its own to the job, where there is who makes them. Workers begin
        with `first_step`."""
        self.term = term
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
                    step=first_step if kind is AgentKind.WORKER else 0,
                    changed=self._changed,
                )
                self.leases[identifier] = agent.leases[identifier] = self._changed[identifier] = lease
        self.endpoints = [""] * len(placement.shards)
        if new_pair is not None and placement.shards:
            self.keys = JobKeys(shards=[new_pair() for _ in placement.shards], workers=new_pair())
        self.keeper = self.workers[placement.keeper]

    def vacate(self, lease: Lease) -> None:
        """A worker was lost: its slot waits for another."""
        if lease.is_held:
            lease.apply(AllocationEvent.RELEASED)
        self._ordered.add(lease.agent)
        self.vacant[lease.place] = lease

    def refill(self, placement: Placement, agents: Callable[[str], Agent]) -> list[Lease]:
        """Gives the vacant slots to other agents, which are told: the new leases."""
        found = []
        for agent_id, (slot, lost) in zip(placement.workers, sorted(self.vacant.items()), strict=True):
            agent, incarnation = agents(agent_id), lost.incarnation + 1
            identifier = f"{self._job}-{self.term}-{AgentKind.WORKER}-{slot}-{incarnation}"
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
            self.leases = {
                (identifier if each is lost else name): (lease if each is lost else each)
                for name, each in self.leases.items()
            }
            agent.leases[identifier] = self._changed[identifier] = lease
            self._changed.pop(lost.id, None)
            self._gone.append(lost)
            if lost is self.keeper:
                self.keeper = lease
            found.append(lease)
        self.vacant = {}
        self.tell(found)
        return found

    def move(self, shard: Lease, endpoint: str) -> None:
        """Workers reach the shard there."""
        self.endpoints = [endpoint if n == shard.place else old for n, old in enumerate(self.endpoints)]

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

    def check_held(self, lease: Lease, term: int) -> None:
        """Raises StaleTermError unless the lease is held under that term. At a job's end none is."""
        if term != lease.term:
            raise StaleTermError(f"{lease.who} holds term {lease.term} of allocation {lease.id}, not {term}")
        if not lease.is_held:
            raise StaleTermError(f"allocation {lease.id} of {lease.who} was released")

    def check_keeper(self, lease: Lease, term: int, verb: str) -> None:
        """Raises StaleTermError, or NotKeeperError for another agent than the keeper; `verb` is what it would do."""
        self.check_held(lease, term)
        if lease is not self.keeper:
            keeper = self.keeper.who if self.keeper else "nobody"
            raise NotKeeperError(f"{lease.who} is not to {verb} parameters: {keeper} is")

    def tell(self, leases: Iterable[Lease]) -> None:
        """Their agents' orders hold them from now on."""
        self._ordered.update(lease.agent for lease in leases if lease.tell())

    def order(self, leases: Iterable[Lease]) -> None:
        """What their agents are to do has changed."""
        self._ordered.update(lease.agent for lease in leases)

    def order_keeper(self) -> None:
        """What the keeper is to do has changed."""
        if self.keeper is not None:
            self.order([self.keeper])

    def release(self) -> None:
        """Nobody holds a place any more."""
        for lease in self.leases.values():
            if lease.is_held:
                lease.apply(AllocationEvent.RELEASED)
            self._ordered.add(lease.agent)

    def clear(self) -> None:
        """Releases every place, and forgets who held it: the job is placed anew."""
        self.release()
        self._gone += self.leases.values()
        self.leases, self.keeper, self.endpoints, self.keys, self.vacant = {}, None, [], None, {}
        self._changed.clear()

    def drain(self) -> list[str]:
        """Agents whose orders have changed since the last call."""
        out, self._ordered = sorted(self._ordered), set()
        return out

    def freed(self) -> list[Lease]:
        """Leases that were found released when they were written down, since the last call."""
        out, self._freed = self._freed, []
        return out
