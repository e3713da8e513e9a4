"""The mind of the server: which agents live, which jobs run on them. Facts in, instructions out; pure.

Every method that takes a fact returns the instructions that follow from it. A RefusalError changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from weft.api.agent import AgentInfo, AgentKind, Orders, Registered, Registration, Report
from weft.api.job import Job
from weft.api.lifecycle import AgentEvent, JobState
from weft_server.instructions import Instruction, Order, RememberAgent
from weft_server.job_run import JobRun
from weft_server.lease import Agent, Lease
from weft_server.limits import Limits
from weft_server.memory import RUN, AgentMemory, KeptJob
from weft_server.moment import Moment
from weft_server.plan import Given, JobPlan
from weft_server.refusals import FullError, UnknownError, WrongKindError
from weft_server.scheduler import AgentView, PendingJob, View, schedule

LOST_SHOWN = 64
"""Lost agents that are still listed, the newest ones: enough to see who is gone."""


class Controller:
    """Everything that the server knows of the present. What has ended is in the records only."""

    def __init__(self, limits: Limits, new_id: Callable[[], str]) -> None:
        self.limits = limits
        self._version = 0
        self._new_id = new_id
        self._agents: dict[str, Agent] = {}
        self._lost: deque[AgentInfo] = deque(maxlen=LOST_SHOWN)
        self._runs: dict[str, JobRun] = {}
        self._number = 0
        self._ticked: float | None = None

    def run_of(self, job: str) -> JobRun | None:
        """The job's run; None once it has ended or where there is none."""
        return self._runs.get(job)

    def agents(self, now: Moment) -> list[AgentInfo]:
        """Those that live in the order of their registration, then those lost, newest first."""
        return [agent.describe(now) for agent in self._agents.values()] + list(self._lost)

    def check_room(self) -> None:
        """Raises FullError when there are as many jobs as the mind holds."""
        if len(self._runs) >= self.limits.most_jobs:
            raise FullError("job", self.limits.most_jobs)

    def count_from(self, version: int) -> None:
        """Agents' orders have versions above this one: every process of the server counts from a higher one."""
        self._version = version

    def restore(self, agents: Sequence[AgentMemory], jobs: Sequence[KeptJob], now: Moment) -> list[Order]:
        """Takes up what an earlier process has written down, jobs oldest first; what is to be told to whom.

        Agents are silent only after a grace. A job that was not pending and has no memory is left out.
        """
        heard = now.seconds + self.limits.restart_grace_s
        self._agents = {each.id: Agent.restored(each, heard, self._version) for each in agents}
        for kept in jobs:
            run = JobRun(kept.job, kept.plan, kept.events, self.limits.job, now.seconds)
            if RUN in kept.parts:
                run.restore(kept.parts, now)
            self._runs[kept.job.id] = run
            for lease in run.places.leases.values():
                if lease.is_held and lease.agent in self._agents:
                    self._agents[lease.agent].leases[lease.id] = lease
                elif lease.is_held:
                    run.agent_lost(lease, "the server has no record of it", now)
        terms = [run.places.term for run in self._runs.values()]
        self._number = max([0, *terms, *(agent.number for agent in self._agents.values())])
        return [Order(agent, self.orders(agent)) for agent in self._agents]

    def submit(self, job: Job, plan: JobPlan, seq: int, now: Moment) -> list[Instruction]:
        """A pending job that the records hold, with `seq` events so far; jobs come oldest first."""
        self._runs[job.id] = JobRun(job, plan, seq, self.limits.job, now.seconds)
        return self._settle(now)

    def cancel(self, job: str, now: Moment) -> list[Instruction]:
        """Raises UnknownError for a job that is not running any more."""
        self._run(job).cancel(now)
        return self._settle(now)

    def register(self, registration: Registration, now: Moment) -> tuple[Registered, list[Instruction]]:
        """A new agent. One of the same kind, name and process is replaced: it has begun anew.

        Raises WrongKindError, or FullError where it would be one too many.
        """
        if registration.kind is AgentKind.SHARD and not registration.endpoint:
            raise WrongKindError(f"shard {registration.name!r} gives no endpoint that workers could reach")
        process = (registration.kind, registration.name, registration.pid)
        same = [each for each in self._agents.values() if each.process == process]
        if not same and len(self._agents) >= self.limits.most_agents:
            raise FullError("agent", self.limits.most_agents)
        orders: list[Instruction] = [order for each in same for order in self._lose(each, "it registered anew", now)]
        self._number += 1
        agent = Agent(self._new_id(), self._number, registration, now, now.seconds, self._version)
        self._agents[agent.id] = agent
        orders += [RememberAgent(agent.id, agent.memory().model_dump_json()), *self._carried_out([Order(agent.id)])]
        answer = Registered(
            id=agent.id,
            heartbeat_interval_s=self.limits.heartbeat_interval_s,
            lost_after_s=self.limits.lost_after_s,
        )
        return answer, orders + self._settle(now)

    def heard(self, agent: str, now: Moment) -> None:
        """A heartbeat has arrived. Raises UnknownError."""
        known = self._agent(agent)
        known.apply(AgentEvent.HEARD)
        known.heard, known.awaited = now.seconds, False

    def leave(self, agent: str, now: Moment) -> list[Instruction]:
        """An agent takes leave. Raises UnknownError."""
        return self._lose(self._agent(agent), "it was ended", now) + self._settle(now)

    def orders(self, agent: str) -> Orders:
        """Everything that the agent is to hold now. Raises UnknownError."""
        known = self._agent(agent)
        told = [lease for lease in known.leases.values() if lease.told]
        return Orders(
            version=known.version,
            allocations=[self._runs[lease.job].allocation(lease) for lease in told],
            upload=sorted(known.uploads),
            sets=[order for lease in told for order in self._runs[lease.job].values.orders(lease)],
        )

    def report(self, allocation: str, report: Report, now: Moment) -> list[Instruction]:
        """Facts about an allocation. Raises UnknownError, StaleTermError or IllegalReportError."""
        run, lease = self._lease(allocation)
        run.report(lease, report, self._silent(run, lease, now), now)
        return self._settle(now)

    def want_parameters(self, job: str) -> tuple[Lease, list[Instruction]]:
        """Asks the keeper of a running job for its parameters. Raises UnknownError or WrongStateError."""
        run = self._run(job)
        agent = self._agents[run.keeper.agent]
        if run.keeper.id in agent.uploads:
            return run.keeper, []
        agent.uploads.add(run.keeper.id)
        return run.keeper, self._carried_out([Order(agent.id)])

    def forget_parameters(self, lease: Lease) -> list[Instruction]:
        """Nobody waits for them any more."""
        agent = self._agents.get(lease.agent)
        if agent is None or lease.id not in agent.uploads:
            return []
        agent.uploads.discard(lease.id)
        return self._carried_out([Order(agent.id)])

    def check_parameters(self, allocation: str, term: int, step: int, final: bool) -> JobRun:
        """Whose parameters these are; raises a RefusalError when they are not wanted."""
        run, lease = self._lease(allocation)
        run.values.check_brought(lease, term, step, final)
        return run

    def keep(self, allocation: str, term: int, step: int, final: bool, now: Moment) -> list[Instruction]:
        """The parameters are in place. Raises a RefusalError when they came too late."""
        run, lease = self._lease(allocation)
        run.keep(lease, term, step, final, now)
        return self.forget_parameters(lease) + self._settle(now)

    def give(self, job: str, given: Given, now: Moment) -> list[Instruction]:
        """Parameters of a pending job were given their first values. Raises UnknownError or WrongStateError."""
        run = self._run(job)
        run.values.give(run.state, given)
        return self._settle(now)

    def ask_set(self, job: str, given: Given, now: Moment) -> tuple[int, list[Instruction]]:
        """(number, instructions): the keeper is to set parameters. Raises a RefusalError."""
        run = self._run(job)
        number = run.values.ask_set(run.state, given)
        return number, self._settle(now)

    def withdraw_set(self, job: str, number: int, why: str, now: Moment) -> list[Instruction]:
        """Nobody waits for it any more."""
        run = self._runs.get(job)
        if run is not None:
            run.withdraw_set(number, why, now)
        return self._settle(now)

    def first_values(self, allocation: str, term: int) -> tuple[str, Given]:
        """(job, first values) that the keeper may read; raises a RefusalError."""
        run, lease = self._lease(allocation)
        return run.job.id, run.values.first(lease, term)

    def open_set(self, allocation: str, term: int, number: int) -> tuple[str, Given]:
        """(job, values) that the keeper is to set; raises a RefusalError."""
        run, lease = self._lease(allocation)
        return run.job.id, run.values.open_set(lease, term, number)

    def tick(self, now: Moment) -> list[Instruction]:
        """Time has passed: finds silent agents, missed deadlines, progress that is due."""
        self._forgive_stall(now)
        instructions: list[Instruction] = []
        for agent in list(self._agents.values()):
            silent_s = now.seconds - agent.heard
            if silent_s >= self.limits.lost_after_s:
                instructions += self._lose(agent, f"silent for {silent_s:.1f} s", now)
        for run in self._runs.values():
            run.tick(now)
        return instructions + self._settle(now)

    def _forgive_stall(self, now: Moment) -> None:
        """A server that stood still has heard nobody: that silence is its own."""
        late = 0.0 if self._ticked is None else now.seconds - self._ticked
        self._ticked = now.seconds
        if late >= self.limits.stall_s:
            for agent in self._agents.values():
                agent.heard = min(now.seconds, agent.heard + late)

    def _lose(self, agent: Agent, why: str, now: Moment) -> list[Instruction]:
        """Its leases' jobs go on or fail without it."""
        agent.apply(AgentEvent.SILENT)
        self._lost.appendleft(agent.describe(now))
        del self._agents[agent.id]
        for lease in list(agent.leases.values()):
            run = self._runs[lease.job]
            if lease.is_held and not run.state.is_terminal:
                run.agent_lost(lease, why, now)
        return [RememberAgent(agent.id, None), Order(agent.id)]

    def _settle(self, now: Moment) -> list[Instruction]:
        """What follows from a change: carries runs' instructions out to the agents, places what fits now."""
        instructions = self._drain()
        pending = self._pending()
        if pending:
            self._schedule(pending, now)
            instructions += self._drain()
        return instructions

    def _drain(self) -> list[Instruction]:
        instructions: list[Instruction] = []
        for run in list(self._runs.values()):
            instructions += run.drain()
            for lease in run.places.leases.values():
                if not lease.is_held:
                    self._drop(lease)
            if run.state.is_terminal:
                del self._runs[run.job.id]
        return self._carried_out(instructions)

    def _drop(self, lease: Lease) -> None:
        agent = self._agents.get(lease.agent)
        if agent is not None and agent.leases.pop(lease.id, None) is not None:
            agent.uploads.discard(lease.id)

    def _carried_out(self, instructions: list[Instruction]) -> list[Instruction]:
        """Gives orders that have changed a new version; they come behind everything that led to them."""
        changed = dict.fromkeys(each.agent for each in instructions if isinstance(each, Order))
        others = [each for each in instructions if not isinstance(each, Order)]
        return [*others, *(self._order(agent) for agent in changed)]

    def _order(self, agent: str) -> Order:
        known = self._agents.get(agent)
        if known is None:
            return Order(agent)
        known.version += 1
        return Order(agent, self.orders(agent))

    def waits_for(self, workers: int, shards: int, now: Moment) -> str | None:
        """What a job of that size would wait for, behind those that are pending; None where it would start now."""
        asked = PendingJob("", workers, shards, now.seconds)
        return schedule(self._view([*self._pending(), asked]), now.seconds).waiting.get(asked.id)

    def _pending(self) -> list[PendingJob]:
        return [
            PendingJob(run.job.id, run.plan.workers, run.plan.shards, run.since)
            for run in self._runs.values()
            if run.state is JobState.PENDING
        ]

    def _view(self, pending: Sequence[PendingJob]) -> View:
        return View(
            jobs=pending,
            agents=[
                AgentView(agent.id, agent.registration.kind, agent.name, agent.number, len(agent.leases))
                for agent in self._agents.values()
                if not agent.awaited
            ],
        )

    def _schedule(self, pending: Sequence[PendingJob], now: Moment) -> None:
        decided = schedule(self._view(pending), now.seconds)
        for job, reason in decided.waiting.items():
            self._runs[job].wait(reason)
        for placement in decided.placements:
            self._number += 1
            self._runs[placement.job].place(placement, self._agents, self._number, now)

    def _silent(self, run: JobRun, reporting: Lease, now: Moment) -> str:
        """Other agents of the job that miss heartbeats: what one reports may be the other's doing."""
        limit = 2 * self.limits.heartbeat_interval_s
        late = [
            f"{lease.who} has been silent for {now.seconds - self._agents[lease.agent].heard:.1f} s"
            for lease in run.places.leases.values()
            if lease is not reporting
            and lease.agent in self._agents
            and now.seconds - self._agents[lease.agent].heard > limit
        ]
        return "".join(f"; {each}" for each in late)

    def _run(self, job: str) -> JobRun:
        if job not in self._runs:
            raise UnknownError("job", job)
        return self._runs[job]

    def _agent(self, agent: str) -> Agent:
        if agent not in self._agents:
            raise UnknownError("agent", agent)
        return self._agents[agent]

    def _lease(self, allocation: str) -> tuple[JobRun, Lease]:
        for run in self._runs.values():
            lease = run.places.leases.get(allocation)
            if lease is not None:
                return run, lease
        raise UnknownError("allocation", allocation)
