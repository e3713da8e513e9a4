"""Which agents live, and which jobs run on them. Facts in, instructions out; pure.

Every method that takes a fact returns the instructions that follow from it. A RefusalError changes nothing. What a fact
has not touched is not looked at, so that a report costs the same however many jobs run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from weft.api.agent import AgentInfo, AgentKind, Orders, Registered, Registration, Report
from weft.api.job import Job
from weft.api.lifecycle import JobState
from weft_server.control.clock import Timestamp
from weft_server.control.instructions import Instruction, Order, RememberAgent
from weft_server.control.job_run import JobRun
from weft_server.control.leases import Agent, Lease, NewPair, process_of
from weft_server.control.limits import Limits
from weft_server.control.memory import AgentMemory, KeptJob, Scaling
from weft_server.control.registry import Registry
from weft_server.control.scheduler import PendingJob, View, fit, schedule
from weft_server.control.snapshots import JobFolder
from weft_server.planning.plan import Given, JobPlan
from weft_server.refusals import FullError, UnknownError, WrongStateError


class Controller:
    """Everything that the server knows of the present. What has ended is in the records only."""

    def __init__(self, limits: Limits, new_id: Callable[[], str], new_pair: NewPair | None = None) -> None:
        self.limits = limits
        self._registry = Registry(limits, new_id)
        self._new_pair = new_pair
        """Makes CURVE keys for jobs; None where the links of their stores are plain."""
        self._runs: dict[str, JobRun] = {}
        self._pending: dict[str, JobRun] = {}
        """Those of the runs that are not placed, oldest first."""
        self._of_allocation: dict[str, JobRun] = {}
        self._touched: dict[str, JobRun] = {}
        """Runs that may have something to tell."""
        self._term = 0
        self._placed: dict[str, int] = {}
        """By project, the number of its newest placement."""
        self._vacant: dict[str, JobRun] = {}
        """Those of which other workers are to take slots over."""
        self._is_stale = True
        """Whether agents or pending jobs have changed since they were last matched."""
        self._until = math.inf
        """Seconds at which they are matched again though nothing has changed."""

    def run_of(self, job: str) -> JobRun | None:
        """The job's run; None once it has ended or where there is none."""
        return self._runs.get(job)

    def agents(self, now: Timestamp) -> list[AgentInfo]:
        """Those that live in the order of their registration, then those lost, newest first."""
        return [self._with_jobs_that_run(each) for each in self._registry.describe(now)]

    def check_room(self, project: str) -> None:
        """Raises FullError when there are as many jobs as the server holds, or as it holds of one project."""
        most, of_project = self.limits.most_jobs, self.limits.most_jobs_of_project
        if len(self._runs) >= most:
            raise FullError("job", most)
        if sum(run.job.project == project for run in self._runs.values()) >= of_project:
            raise FullError("job", of_project, of=f"project {project}")

    def count_from(self, version: int) -> None:
        """Agents' orders have versions above this one: every process of the server counts from a higher one."""
        self._registry.count_from(version)

    def restore(self, agents: Sequence[AgentMemory], jobs: Sequence[KeptJob], now: Timestamp) -> list[Order]:
        """Takes up what an earlier process has written down, jobs oldest first; what is to be told to whom.

        Agents are silent only after a grace. A job that was not pending and has no memory is left out.
        """
        self._registry.restore(agents, now)
        for kept in jobs:
            run = JobRun(
                kept.job,
                kept.plan,
                kept.events,
                self.limits.job,
                now,
                written=kept.parts,
                snapshots=self.limits.snapshots,
            )
            self._hold(run)
            for lease in run.leases.by_id.values():
                self._of_allocation[lease.id] = run
                agent = self._registry.find(lease.agent)
                if lease.is_held and agent is not None:
                    agent.leases[lease.id] = lease
                elif lease.is_held:
                    run.agent_lost(lease, "the server has no record of it", now)
        self._term = max([0, *(run.memory.term for run in self._runs.values())])
        return [Order(agent.id, self.orders(agent.id)) for agent in self._registry]

    def submit(self, job: Job, plan: JobPlan, seq: int, now: Timestamp) -> list[Instruction]:
        """A pending job that the records hold, with `seq` events so far; jobs come oldest first."""
        run = JobRun(job, plan, seq, self.limits.job, now, snapshots=self.limits.snapshots)
        run.tell_beginning(now)
        self._hold(run)
        return self._settle(now)

    def cancel(self, job: str, why: str, now: Timestamp, *, discard: bool = False) -> list[Instruction]:
        """Raises UnknownError for a job that is not running any more."""
        self._run(job).cancel(why, now, discard=discard)
        return self._settle(now)

    def user_of(self, folder: JobFolder) -> str | None:
        """A job that has not ended and may have to go on from a snapshot in that folder, if there is one."""
        return next((job for job, run in self._runs.items() if any(map(folder.has, run.memory.snapshots))), None)

    def stop(self, job: str, why: str, now: Timestamp) -> list[Instruction]:
        """Raises UnknownError for a job that is not running any more, WrongStateError."""
        self._run(job).stop(why, now)
        return self._settle(now)

    def scale(self, job: str, scaling: Scaling, now: Timestamp) -> list[Instruction]:
        """Raises UnknownError for a job that is not running any more, WrongStateError, also where there are not enough
        agents: the job would give up those that it has, and wait."""
        run, agents, plan = self._run(job), self._registry.views(), scaling.plan
        held = {lease.agent for lease in run.leases.by_id.values() if lease.is_held}
        free = [each for each in agents if each.kind is AgentKind.WORKER and (each.id in held or not each.held)]
        free = fit(free, plan.worker_bytes)
        shards = fit([each for each in agents if each.kind is AgentKind.SHARD], plan.shard_bytes)
        for noun, asked, there in (("worker", plan.workers, free), ("shard", plan.shards, shards)):
            if asked > len(there):
                raise WrongStateError(
                    f"job {job} cannot have {asked} {noun}s: {len(there)} of the cluster are free for it; "
                    f"start more, or ask for fewer"
                )
        run.scale(scaling, now)
        return self._settle(now)

    def register(self, registration: Registration, now: Timestamp) -> tuple[Registered, list[Instruction]]:
        """A new agent. One of the same kind, name, process and nonce is replaced: its answer was lost on the way. So is
        a silent one of its name, whose successor it is.

        Raises FullError where it would be one too many.
        """
        same = self._registry.check(registration)
        orders: list[Instruction] = []
        for each in same:
            # A process that comes again is not lost; it comes often while the records take nothing.
            is_another = process_of(each.registration) != process_of(registration)
            orders += self._lose(each, "it registered anew", now, is_listed=is_another)
        agent = self._registry.add(registration, now)
        self._is_stale = True
        orders += [RememberAgent(agent.id, agent.memory.model_dump_json()), *self._carried_out([Order(agent.id)])]
        answer = Registered(
            id=agent.id,
            heartbeat_interval_s=self.limits.heartbeat_interval_s,
            lost_after_s=self.limits.lost_after_s,
        )
        return answer, orders + self._settle(now)

    def heard(self, agent: str, now: Timestamp) -> list[Instruction]:
        """A heartbeat has arrived. Raises UnknownError."""
        silent_s = self._registry.heard(agent, now)
        if silent_s is None:
            return []
        self._is_stale = True
        for lease in self._registry.get(agent).leases.values():
            if lease.is_silent:
                self._run(lease.job).agent_heard(lease, silent_s, now)
        return self._settle(now)

    def hung_up(self, agent: str) -> None:
        """Its connection has ended in the middle of a heartbeat."""
        known = self._registry.find(agent)
        if known is not None:
            known.hung_up = True

    def leave(self, agent: str, now: Timestamp, why: str | None = None) -> list[Instruction]:
        """An agent takes leave, or its parent tells `why` it ended. Raises UnknownError."""
        told = why or "it was ended"
        left = self._lose(self._registry.get(agent), told, now, how="was stopped", counts=why is not None)
        return left + self._settle(now)

    def orders(self, agent: str) -> Orders:
        """Everything that the agent is to hold now. Raises UnknownError."""
        known = self._registry.get(agent)
        told = [lease for lease in known.leases.values() if lease.told]
        return Orders(
            version=known.version,
            allocations=[self._runs[lease.job].allocation(lease, self.limits.lost_after_s) for lease in told],
            upload=sorted(known.uploads),
            sets=[order for lease in told for order in self._runs[lease.job].values.orders(lease)],
            snapshots=[order for lease in told for order in self._runs[lease.job].snapshots.orders(lease)],
        )

    def report(self, allocation: str, report: Report, now: Timestamp) -> list[Instruction]:
        """Facts about an allocation. Raises UnknownError, StaleTermError or IllegalReportError."""
        run, lease = self._lease(allocation)
        run.report(lease, report, lambda: self._silent(run, lease, now), now)
        return self._settle(now)

    def lease_of(self, allocation: str) -> Lease:
        """Raises UnknownError."""
        return self._lease(allocation)[1]

    def want_parameters(self, job: str) -> tuple[Lease, list[Instruction]]:
        """Asks the keeper of a running job for its parameters. Raises UnknownError or WrongStateError."""
        run = self._run(job)
        agent = self._registry.get(run.keeper.agent)
        if run.keeper.id in agent.uploads:
            return run.keeper, []
        agent.uploads.add(run.keeper.id)
        return run.keeper, self._carried_out([Order(agent.id)])

    def forget_parameters(self, lease: Lease) -> list[Instruction]:
        """Nobody waits for them any more."""
        agent = self._registry.find(lease.agent)
        if agent is None or lease.id not in agent.uploads:
            return []
        agent.uploads.discard(lease.id)
        return self._carried_out([Order(agent.id)])

    def check_parameters(self, allocation: str, term: int, step: int, final: bool, now: Timestamp) -> JobRun:
        """Whose parameters these are that are about to come; raises a RefusalError when they are not wanted."""
        run, lease = self._lease(allocation)
        run.expect(lease, term, step, final, now)
        return run

    def keep(self, allocation: str, term: int, step: int, final: bool, now: Timestamp) -> list[Instruction]:
        """The parameters are in place. Raises a RefusalError when they came too late."""
        run, lease = self._lease(allocation)
        run.keep(lease, term, step, final, now)
        return self.forget_parameters(lease) + self._settle(now)

    def with_final(self) -> list[str]:
        """Jobs that have not ended, and whose final values are in place."""
        return [job for job, run in self._runs.items() if run.memory.has_final]

    def final_deleted(self, job: str, now: Timestamp) -> list[Instruction]:
        """The final values of a job are not in their place any more."""
        if job in self._runs:
            self._run(job).final_deleted(now)
        return self._settle(now)

    def give(self, job: str, given: Given, now: Timestamp) -> list[Instruction]:
        """Parameters of a pending job were given their first values. Raises UnknownError or WrongStateError."""
        run = self._run(job)
        run.values.give(run.state, given)
        return self._settle(now)

    def ask_set(self, job: str, given: Given, now: Timestamp) -> tuple[int, list[Instruction]]:
        """(number, instructions): the keeper is to set parameters. Raises a RefusalError."""
        run = self._run(job)
        number = run.ask_set(given, now)
        return number, self._settle(now)

    def withdraw_set(self, job: str, number: int, why: str, now: Timestamp) -> list[Instruction]:
        """Nobody waits for it any more."""
        if job in self._runs:
            self._run(job).withdraw_set(number, why, now)
        return self._settle(now)

    def snapshot_checked(self, job: str, step: int, error: str | None, now: Timestamp) -> list[Instruction]:
        """A snapshot of that step is whole, with its manifest; or why it is not."""
        if job in self._runs:
            self._run(job).snapshot_checked(step, error, now)
        return self._settle(now)

    def plan_of(self, allocation: str, term: int) -> JobPlan:
        """The plan of the job that the allocation is of. Raises a RefusalError."""
        run, lease = self._lease(allocation)
        lease.check_held(term)
        return run.plan

    def first_values(self, allocation: str, term: int) -> tuple[str, Given]:
        """(job, first values) that the keeper may read; raises a RefusalError."""
        run, lease = self._lease(allocation)
        return run.job.id, run.values.first(lease, term)

    def open_set(self, allocation: str, term: int, number: int) -> tuple[str, Given]:
        """(job, values) that the keeper is to set; raises a RefusalError."""
        run, lease = self._lease(allocation)
        return run.job.id, run.values.open_set(lease, term, number)

    def tick(self, now: Timestamp) -> list[Instruction]:
        """Time has passed: finds silent agents, missed deadlines, progress that is due."""
        instructions: list[Instruction] = []
        lost, suspected = self._registry.silent(now)
        for agent, why in lost:
            instructions += self._lose(agent, why, now)
        for agent, silent_s in suspected:
            self._is_stale = True
            for lease in agent.leases.values():
                self._run(lease.job).agent_silent(lease, silent_s, self.limits.lost_after_s, now)
        for run in self._runs.values():
            if run.tick(now):
                self._touch(run)
        return instructions + self._settle(now)

    def most_memory(self, kind: AgentKind) -> int | None:
        """The most that a job's process may take on any agent of that kind; None where nobody knows."""
        return self._registry.most_memory(kind)

    def waits_for(self, plan: JobPlan, project: str, now: Timestamp) -> str | None:
        """What a job of that plan would wait for, beside those that are pending; None where it would start now."""
        asked = PendingJob.of("", plan, now.seconds, project)
        return schedule(self._view(asked), now.seconds).waiting.get(asked.id)

    def _with_jobs_that_run(self, agent: AgentInfo) -> AgentInfo:
        """An agent that was lost held places in jobs; those that have ended since are not listed any more."""
        return agent.model_copy(update={"jobs": [job for job in agent.jobs if job in self._runs]})

    def _lose(
        self,
        agent: Agent,
        why: str,
        now: Timestamp,
        *,
        how: str = "was lost",
        counts: bool = True,
        is_listed: bool = True,
    ) -> list[Instruction]:
        """Its leases' jobs go on or fail without it; `counts`: as a loss."""
        self._registry.lose(agent, now, is_listed=is_listed)
        self._is_stale = True
        for lease in list(agent.leases.values()):
            run = self._run(lease.job)
            if lease.is_held and not run.state.is_terminal:
                run.agent_lost(lease, why, now, how=how, counts=counts)
        return [RememberAgent(agent.id, None), Order(agent.id)]

    def _hold(self, run: JobRun) -> None:
        self._runs[run.job.id] = run
        if run.state.is_waiting:
            self._pending[run.job.id] = run
            self._is_stale = True
        self._touch(run)

    def _touch(self, run: JobRun) -> None:
        self._touched[run.job.id] = run

    def _settle(self, now: Timestamp) -> list[Instruction]:
        """What follows from a change: carries runs' instructions out to the agents, places what fits now."""
        instructions = self._drain()
        if (self._pending or self._vacant) and (self._is_stale or now.seconds >= self._until):
            self._schedule(now)
            instructions += self._drain()
        return instructions

    def _drain(self) -> list[Instruction]:
        instructions: list[Instruction] = []
        while self._touched:
            job, run = next(iter(self._touched.items()))
            instructions += run.drain()
            for lease in run.leases.freed():
                self._registry.free(lease)
                if lease.id not in run.leases.by_id:
                    self._of_allocation.pop(lease.id, None)
                self._is_stale = True
            if run.state.is_waiting and job not in self._pending:
                self._pending[job] = run
                self._is_stale = True
            if not run.state.is_waiting and self._pending.pop(job, None) is not None:
                self._is_stale = True
            if run.lacks_workers != (job in self._vacant):
                self._is_stale = True
                if run.lacks_workers:
                    self._vacant[job] = run
                else:
                    del self._vacant[job]
            if run.state.is_terminal:
                del self._runs[job]
                for allocation in run.leases.by_id:
                    del self._of_allocation[allocation]
            del self._touched[job]
        return self._carried_out(instructions)

    def _carried_out(self, instructions: list[Instruction]) -> list[Instruction]:
        """Gives orders that have changed a new version; they come behind everything that led to them."""
        changed = dict.fromkeys(each.agent for each in instructions if isinstance(each, Order))
        others = [each for each in instructions if not isinstance(each, Order)]
        return [*others, *(self._order(agent) for agent in changed)]

    def _order(self, agent: str) -> Order:
        known = self._registry.find(agent)
        if known is None:
            return Order(agent)
        known.version += 1
        return Order(agent, self.orders(agent))

    def _view(self, *more: PendingJob) -> View:
        """Slots of jobs that run come before jobs that wait: many others may wait for them."""
        vacant = [
            PendingJob(job, len(run.memory.vacant), 0, run.vacant_since, run.plan.worker_bytes)
            for job, run in self._vacant.items()
        ]
        pending = [
            # What has run goes on before others begin: it gave its agents up for that alone.
            PendingJob.of(job, run.plan, run.since, run.job.project if run.state is JobState.PENDING else None)
            for job, run in self._pending.items()
        ]
        held: Counter[str] = Counter()
        for job, run in self._runs.items():
            if job not in self._pending:
                held[run.job.project] += run.job.workers
        silent = self._registry.suspected()
        return View(
            jobs=[*vacant, *pending, *more],
            agents=self._registry.views(),
            silent=silent,
            held=held,
            placed=self._placed,
        )

    def _schedule(self, now: Timestamp) -> None:
        """Matches pending jobs and agents. What is placed changes what the others wait for, from the next fact on."""
        decided = schedule(self._view(), now.seconds)
        self._is_stale, self._until = bool(decided.placements), decided.until
        for job, reason in decided.waiting.items():
            if self._runs[job].wait(reason):
                self._touch(self._runs[job])
        for placement in decided.placements:
            run = self._run(placement.job)
            if placement.job in self._vacant:
                run.refill(placement, self._registry.get, now)
            else:
                self._term += 1
                self._placed[run.job.project] = max(self._placed.values(), default=0) + 1
                run.place(placement, self._registry.get, self._term, now, self._new_pair)
            self._of_allocation.update(dict.fromkeys(run.leases.by_id, run))

    def _silent(self, run: JobRun, reporting: Lease, now: Timestamp) -> str:
        """Other agents of the job that miss heartbeats: what one reports may be the other's doing."""
        others = (lease for lease in run.leases.by_id.values() if lease is not reporting)
        return "".join(f"; {late}" for late in (self._registry.late(lease, now) for lease in others) if late)

    def _run(self, job: str) -> JobRun:
        """A run that a fact is about."""
        if job not in self._runs:
            raise UnknownError("job", job)
        self._touch(self._runs[job])
        return self._runs[job]

    def _lease(self, allocation: str) -> tuple[JobRun, Lease]:
        """A lease that a fact is about, and its job's run."""
        run = self._of_allocation.get(allocation)
        if run is None:
            raise UnknownError("allocation", allocation)
        self._touch(run)
        return run, run.leases.by_id[allocation]
