"""The agents: who lives, who was lost lately, when each was heard, what each holds and has been told of. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from weft.api.agent import AgentInfo, AgentKind, Registration
from weft.api.lifecycle import AgentEvent, AgentState
from weft_server.control.clock import Timestamp
from weft_server.control.leases import Agent, Lease, process_of
from weft_server.control.limits import Limits
from weft_server.control.memory import AgentMemory
from weft_server.control.scheduler import AgentView
from weft_server.refusals import FullError, UnknownError

LOST_SHOWN = 64
"""Lost agents that are still listed, the newest ones: enough to see who is gone."""


class Registry:
    """Registered agents, in the order of their registration."""

    def __init__(self, limits: Limits, new_id: Callable[[], str]) -> None:
        self._limits = limits
        self._new_id = new_id
        self._agents: dict[str, Agent] = {}
        self._lost: deque[tuple[AgentInfo, float]] = deque(maxlen=LOST_SHOWN)
        """As they were, and when that was."""
        self._number = 0
        """Of the newest registration."""
        self._version = 0
        """What every agent's orders are numbered above."""

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

    def describe(self, now: Timestamp) -> list[AgentInfo]:
        """Those that live in the order of their registration, then those lost, newest first."""
        lost = [
            info.model_copy(update={"silent_s": round(info.silent_s + now.seconds - then, 3)})
            for info, then in self._lost
        ]
        return [agent.describe(now) for agent in self] + lost

    def views(self) -> list[AgentView]:
        """Those that work can be given to: an agent that is silent has to be heard first, and so has one of an earlier
        process of the server."""
        return [
            AgentView(
                agent.id,
                agent.registration.kind,
                agent.name,
                agent.memory.number,
                len(agent.leases),
                agent.registration.job_memory_bytes or math.inf,
            )
            for agent in self
            if agent.state is AgentState.ALIVE
        ]

    def most_memory(self, kind: AgentKind) -> int | None:
        """The most that a job's process may take on any agent of that kind; None where one has not said, or none is."""
        bounds = [each.registration.job_memory_bytes for each in self if each.registration.kind is kind]
        known = [each for each in bounds if each is not None]
        return max(known) if known and len(known) == len(bounds) else None

    def suspected(self) -> list[AgentKind]:
        """Of each that is silent and waited for, its kind."""
        return [agent.registration.kind for agent in self if agent.state is AgentState.SUSPECTED]

    def count_from(self, version: int) -> None:
        """Agents' orders have versions above this one: every process of the server counts from a higher one."""
        self._version = version

    def restore(self, memories: Sequence[AgentMemory], now: Timestamp) -> None:
        """Takes up the agents of an earlier process. They are suspected until they call, and silent after a grace."""
        heard = now.seconds + self._limits.restart_grace_s
        self._agents = {each.id: Agent(each, heard, self._version, AgentState.SUSPECTED) for each in memories}
        self._number = max([0, *(each.number for each in memories)])

    def check(self, registration: Registration) -> list[Agent]:
        """Those that it would replace: same kind, name, process and nonce, or those whose successor it is. Raises
        FullError."""
        named = [each for each in self if (each.registration.kind, each.name) == (registration.kind, registration.name)]
        process = process_of(registration)
        same = [
            each
            for each in named
            if each.hung_up or each.state is AgentState.SUSPECTED or process_of(each.registration) == process
        ]
        if not same and len(self._agents) >= self._limits.most_agents:
            raise FullError("agent", self._limits.most_agents)
        return same

    def add(self, registration: Registration, now: Timestamp) -> Agent:
        """A new agent of a registration that was checked."""
        self._number += 1
        memory = AgentMemory(id=self._new_id(), number=self._number, registration=registration, registered_at=now.at)
        agent = Agent(memory, now.seconds, self._version)
        self._agents[agent.id] = agent
        return agent

    def lose(self, agent: Agent, now: Timestamp, *, is_listed: bool = True) -> None:
        """It lives no more; it may be listed for a while."""
        agent.apply(AgentEvent.GONE)
        if is_listed:
            self._lost.appendleft((agent.describe(now), now.seconds))
        del self._agents[agent.id]

    def heard(self, agent: str, now: Timestamp) -> float | None:
        """A heartbeat has arrived. The seconds of silence that it ends, where the agent was suspected; None where work
        could be given to it all the time. Raises UnknownError."""
        known = self.get(agent)
        was_suspected = known.state is AgentState.SUSPECTED
        silent_s = max(0.0, now.seconds - known.heard)
        known.apply(AgentEvent.HEARD)
        known.heard, known.hung_up = now.seconds, False
        return silent_s if was_suspected else None

    def silent(self, now: Timestamp) -> tuple[list[tuple[Agent, str]], list[tuple[Agent, float]]]:
        """Those that are lost from now on, and why; and those that are suspected from now on, silent for so long. To be
        asked at every tick.

        A process that is frozen or cut off is silent, but hangs up on nobody. So one that has, and one whose
        name another process has registered since, is dead, and nobody waits for it.
        """
        lost: list[tuple[Agent, str]] = []
        suspected: list[tuple[Agent, float]] = []
        successors = {(agent.registration.kind, agent.name): agent for agent in self}
        for agent in self:
            silent_s = now.seconds - agent.heard
            if silent_s < min(self._limits.suspected_after_s, self._limits.lost_after_s):
                continue
            if silent_s >= self._limits.lost_after_s:
                lost.append((agent, f"silent for {silent_s:.1f} s"))
            elif agent.hung_up:
                lost.append((agent, f"its connection ended, and it has not called for {silent_s:.1f} s"))
            elif successors[agent.registration.kind, agent.name] is not agent:
                lost.append((agent, f"silent for {silent_s:.1f} s, and another process has its name"))
            elif agent.state is AgentState.ALIVE:
                agent.apply(AgentEvent.SILENT)
                suspected.append((agent, silent_s))
        return lost, suspected

    def late(self, lease: Lease, now: Timestamp) -> str:
        """What to say of a lease whose agent misses heartbeats; '' where it does not."""
        agent = self._agents.get(lease.agent)
        silent_s = 0.0 if agent is None else now.seconds - agent.heard
        return f"{lease.who} has been silent for {silent_s:.1f} s" if silent_s > self._limits.late_after_s else ""

    def free(self, lease: Lease) -> None:
        """The lease's agent holds it no more."""
        agent = self._agents.get(lease.agent)
        if agent is not None and agent.leases.pop(lease.id, None) is not None:
            agent.uploads.discard(lease.id)
