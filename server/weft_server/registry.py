"""The agents: who lives, who was lost lately, when each was heard, what each holds and has been told of. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from weft.api.agent import AgentInfo, Registration
from weft.api.lifecycle import AgentEvent
from weft_server.lease import Agent, Lease, process_of
from weft_server.limits import Limits
from weft_server.memory import AgentMemory
from weft_server.moment import Moment
from weft_server.refusals import FullError, UnknownError
from weft_server.scheduler import AgentView

LOST_SHOWN = 64
"""Lost agents that are still listed, the newest ones: enough to see who is gone."""


class Registry:
    """Registered agents, in the order of their registration."""

    def __init__(self, limits: Limits, new_id: Callable[[], str]) -> None:
        self._limits = limits
        self._new_id = new_id
        self._agents: dict[str, Agent] = {}
        self._lost: deque[AgentInfo] = deque(maxlen=LOST_SHOWN)
        self._number = 0
        """Of the newest registration."""
        self._version = 0
        """What every agent's orders are numbered above."""
        self._looked: float | None = None

    def __iter__(self) -> Iterator[Agent]:
        return iter(list(self._agents.values()))

    def find(self, agent: str) -> Agent | None:
        """The agent; None where it does not live."""
        return self._agents.get(agent)

    def get(self, agent: str) -> Agent:
        """Raises UnknownError."""
        if agent not in self._agents:
            raise UnknownError("agent", agent)
        return self._agents[agent]

    def describe(self, now: Moment) -> list[AgentInfo]:
        """Those that live in the order of their registration, then those lost, newest first."""
        return [agent.describe(now) for agent in self] + list(self._lost)

    def views(self) -> list[AgentView]:
        """Those that work can be given to: an agent of an earlier process of the server has to be heard first."""
        return [
            AgentView(agent.id, agent.registration.kind, agent.name, agent.number, len(agent.leases))
            for agent in self
            if not agent.awaited
        ]

    def count_from(self, version: int) -> None:
        """Agents' orders have versions above this one: every process of the server counts from a higher one."""
        self._version = version

    def restore(self, memories: Sequence[AgentMemory], now: Moment) -> None:
        """Takes up the agents of an earlier process. They are silent only after a grace."""
        heard = now.seconds + self._limits.restart_grace_s
        self._agents = {each.id: Agent.restored(each, heard, self._version) for each in memories}
        self._number = max([0, *(agent.number for agent in self)])

    def check(self, registration: Registration) -> list[Agent]:
        """Those that it would replace: same kind, name, process and nonce. Raises FullError."""
        same = [each for each in self if each.process == process_of(registration)]
        if not same and len(self._agents) >= self._limits.most_agents:
            raise FullError("agent", self._limits.most_agents)
        return same

    def add(self, registration: Registration, now: Moment) -> Agent:
        """A new agent of a registration that was checked."""
        self._number += 1
        agent = Agent(self._new_id(), self._number, registration, now, now.seconds, self._version)
        self._agents[agent.id] = agent
        return agent

    def lose(self, agent: Agent, now: Moment) -> None:
        """It lives no more; it is listed for a while."""
        agent.apply(AgentEvent.SILENT)
        self._lost.appendleft(agent.describe(now))
        del self._agents[agent.id]

    def heard(self, agent: str, now: Moment) -> bool:
        """A heartbeat has arrived: whether work can be given to the agent from now on. Raises UnknownError."""
        known = self.get(agent)
        known.apply(AgentEvent.HEARD)
        was_awaited = known.awaited
        known.heard, known.awaited = now.seconds, False
        return was_awaited

    def silent(self, now: Moment) -> list[tuple[Agent, float]]:
        """Those that count as lost, and for how many seconds they were silent. To be asked at every tick.

        A server that stood still has heard nobody: that silence is its own.
        """
        late = 0.0 if self._looked is None else now.seconds - self._looked
        self._looked = now.seconds
        if late >= self._limits.stall_s:
            for agent in self:
                agent.heard = min(now.seconds, agent.heard + late)
        silences = [(agent, now.seconds - agent.heard) for agent in self]
        return [(agent, silent_s) for agent, silent_s in silences if silent_s >= self._limits.lost_after_s]

    def late(self, lease: Lease, now: Moment) -> str:
        """What to say of a lease whose agent misses heartbeats; '' where it does not."""
        agent = self._agents.get(lease.agent)
        silent_s = 0.0 if agent is None else now.seconds - agent.heard
        return f"{lease.who} has been silent for {silent_s:.1f} s" if silent_s > self._limits.late_after_s else ""

    def free(self, lease: Lease) -> None:
        """The lease's agent holds it no more."""
        agent = self._agents.get(lease.agent)
        if agent is not None and agent.leases.pop(lease.id, None) is not None:
            agent.uploads.discard(lease.id)
