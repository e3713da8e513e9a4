"""The life of one job: facts in, instructions out. Pure; the transition tables are in `weft.api.lifecycle`.

pending --placed--> starting: shards are told; once all are ready, workers are told; once all run,
--started--> running: once every worker has done its last step,
--trained--> finishing: once the keeper's final parameters are there,
--kept--> succeeded. A failure, a lost agent or a cancel ends it from any of these. At its end every lease is released.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.api.agent import AgentKind, Allocation, Report
from weft.api.event import EventBody, LogLevel, LogLine, StateChanged
from weft.api.job import Job, Progress
from weft.api.lifecycle import (
    ALLOCATION_TRANSITIONS,
    JOB_TRANSITIONS,
    AllocationEvent,
    AllocationState,
    JobEvent,
    JobState,
    after,
)
from weft.api.store import StoreSpec
from weft_server.instructions import Close, Instruction, Order
from weft_server.job_log import JobLog
from weft_server.lease import Agent, Lease
from weft_server.metric_sums import MetricSums
from weft_server.moment import Moment
from weft_server.orders import allocation_of
from weft_server.plan import JobPlan
from weft_server.refusals import IllegalReportError, NotKeeperError, StaleTermError, WrongStateError
from weft_server.scheduler import Placement
from weft_server.time_limits import STARTED, TimeLimits, overdue

_ENDING = {JobEvent.KEPT, JobEvent.FAILED, JobEvent.CANCELLED}


class JobRun:
    """A job that has not ended. `job` is what is told of it."""

    def __init__(self, job: Job, plan: JobPlan, log: JobLog, limits: TimeLimits, since: float) -> None:
        self.job = job
        self.plan = plan
        self.since = since
        self.leases: dict[str, Lease] = {}
        self._limits = limits
        self._log = log
        self._sums = MetricSums(plan.workers)
        self._store: StoreSpec | None = None
        self._keeper: Lease | None = None
        self._has_final = False
        self._deadline: float | None = None
        self._orders: set[str] = set()

    @property
    def state(self) -> JobState:
        return self.job.state

    @property
    def workers(self) -> list[Lease]:
        """By slot."""
        return [lease for lease in self.leases.values() if lease.kind is AgentKind.WORKER]

    @property
    def shards(self) -> list[Lease]:
        """By shard number."""
        return [lease for lease in self.leases.values() if lease.kind is AgentKind.SHARD]

    @property
    def keeper(self) -> Lease:
        """The worker that brings parameters. Raises WrongStateError before it runs."""
        if self._keeper is None or self.state not in {JobState.RUNNING, JobState.FINISHING}:
            raise WrongStateError(f"job {self.job.id} is {self.state}: it has no parameters yet")
        return self._keeper

    def wait(self, reason: str) -> None:
        """What a pending job waits for."""
        if self.state is JobState.PENDING and reason != self.job.reason:
            self._set(reason=reason)

    def place(self, placement: Placement, agents: Mapping[str, Agent], term: int, now: Moment) -> None:
        """PLACED: gives every place to an agent, and tells the shards."""
        for kind, ids in ((AgentKind.SHARD, placement.shards), (AgentKind.WORKER, placement.workers)):
            for place, agent_id in enumerate(ids):
                self._lease(kind, place, agents[agent_id], term)
        endpoints = [agents[agent_id].registration.endpoint or "" for agent_id in placement.shards]
        self._store = self.plan.store(self.job.id, term, endpoints)
        self._keeper = self.workers[placement.keeper]
        self._move(JobEvent.PLACED, now)
        self._deadline = now.seconds + self._limits.start_s
        who = ", ".join(lease.who for lease in self.leases.values())
        self._say(f"placed on {who}; {self._keeper.who} keeps the parameters", now)
        self._tell(self.shards)

    def allocation(self, lease: Lease) -> Allocation:
        """The lease as its agent's orders hold it."""
        assert self._store is not None
        return allocation_of(lease, self.plan, self._store, keeper=lease is self._keeper)

    def report(self, lease: Lease, report: Report, silent: str, now: Moment) -> None:
        """Facts from an agent. `silent` names agents not heard of, for the reason of a failure; '' when there are none.

        Raises StaleTermError or IllegalReportError and changes nothing. A repeated report is ignored.
        """
        self._check_term(lease, report.term)
        if report.seq <= lease.seq:
            return
        if report.event is not None and (lease.state, report.event) not in ALLOCATION_TRANSITIONS:
            raise IllegalReportError(f"{lease.who} is {lease.state} and cannot be {report.event} next")
        lease.seq = report.seq
        told = [metric.step for metric in report.metrics] + ([] if report.step is None else [report.step])
        lease.step = max(lease.step, min(max(told, default=0), self.plan.steps))
        self._take_metrics(lease, report, now)
        for line in report.logs:
            self._append(LogLine(level=line.level, source=lease.source, message=line.message), now)
        if report.event is not None:
            self._take_event(lease, report.event, report.reason, silent, now)

    def check_parameters(self, lease: Lease, term: int, step: int, final: bool) -> None:
        """Whether the keeper may bring parameters of that step now. Raises a RefusalError."""
        self._check_term(lease, term)
        if lease is not self._keeper:
            raise NotKeeperError(
                f"{lease.who} is not to bring parameters: {self._keeper.who if self._keeper else 'nobody'} is"
            )
        steps = self.plan.steps
        if step != steps if final else not 0 <= step <= steps:
            raise NotKeeperError(f"step {step} of {steps} has no {'final ' if final else ''}parameters")

    def keep(self, lease: Lease, term: int, step: int, final: bool, now: Moment) -> None:
        """The server has the parameters of `step`. Raises what `check_parameters` raises."""
        self.check_parameters(lease, term, step, final)
        if final:
            self._has_final = True
            self._advance(now)

    def agent_lost(self, lease: Lease, why: str, now: Moment) -> None:
        """A lost agent fails the job, except a worker that has done its part and keeps nothing."""
        if lease.state is AllocationState.DONE and (lease is not self._keeper or self._has_final):
            self._say(f"{lease.who} was lost after its last step: {why}", now, "warning")
            lease.apply(AllocationEvent.RELEASED)
            return
        self.fail(f"{lease.who} was lost: {why}, {self._at(lease)}", now)

    def cancel(self, now: Moment) -> None:
        """Ends the job; a cancelled one stays so. Raises WrongStateError once it has ended otherwise."""
        if self.state.is_terminal:
            raise WrongStateError(f"job {self.job.id} has {self.state}: it cannot be cancelled")
        self._move(JobEvent.CANCELLED, now, None)

    def fail(self, reason: str, now: Moment) -> None:
        self._move(JobEvent.FAILED, now, reason)

    def tick(self, now: Moment) -> None:
        """Deadlines, and progress that is due."""
        if self._deadline is not None and now.seconds >= self._deadline:
            self.fail(overdue(self.state, self.shards, self.workers, self._keeper, self._limits), now)
        elif self.state is JobState.RUNNING:
            self._progress(now)

    def drain(self) -> list[Instruction]:
        """The instructions since the last call."""
        out = self._log.drain()
        out += [Order(agent) for agent in sorted(self._orders)]
        self._orders.clear()
        if self.state.is_terminal:
            out.append(Close(self.job.id, self.state is JobState.SUCCEEDED))
        return out

    def _take_metrics(self, lease: Lease, report: Report, now: Moment) -> None:
        if lease.kind is not AgentKind.WORKER:
            return
        for metric in report.metrics:
            taken = self._sums.add(lease.place, metric)
            if taken is None:
                continue
            newest = {f"{taken.split}/{name}": value for name, value in taken.values.items()}
            # The other split's stay; of this one, what is reported now is all there is.
            others = {name: value for name, value in self.job.metrics.items() if not name.startswith(f"{taken.split}/")}
            self._set(metrics={**others, **newest})
            self._append(taken, now)

    def _take_event(self, lease: Lease, event: AllocationEvent, reason: str | None, silent: str, now: Moment) -> None:
        lease.apply(event)
        if event is AllocationEvent.FAILED:
            because = f": {reason}" if reason else " and gave no reason"
            self.fail(f"{lease.who} failed {self._at(lease)}{because}{silent}", now)
        elif event is AllocationEvent.RELEASED:
            self.fail(f"{lease.who} gave its place up {self._at(lease)}{f': {reason}' if reason else ''}{silent}", now)
        else:
            self._advance(now)

    def _advance(self, now: Moment) -> None:
        """Takes every step of the lifecycle that the leases' states allow."""
        if self.state is JobState.STARTING and all(shard.state is AllocationState.READY for shard in self.shards):
            self._tell(self.workers)
            if all(worker.state in STARTED for worker in self.workers):
                self._deadline = None
                self._log.start_rate(now)
                self._move(JobEvent.STARTED, now)
        if self.state is JobState.RUNNING and all(self._is_done(worker) for worker in self.workers):
            self._progress(now, last=True)
            self._deadline = now.seconds + self._limits.keep_s
            self._move(JobEvent.TRAINED, now)
        if self.state is JobState.FINISHING and self._has_final:
            self._move(JobEvent.KEPT, now)

    @staticmethod
    def _is_done(worker: Lease) -> bool:
        """A worker lost after its last step was released, and has done its part."""
        return worker.state in {AllocationState.DONE, AllocationState.RELEASED}

    def _move(self, event: JobEvent, now: Moment, reason: str | None = None) -> None:
        state = after(JOB_TRANSITIONS, self.state, event)
        started = now.at if event is JobEvent.STARTED else self.job.started_at
        ended = now.at if event in _ENDING else None
        if event in _ENDING:
            self._release()
        self._set(state=state, reason=reason, started_at=started, ended_at=ended)
        self._append(StateChanged(state=state, reason=reason), now)

    def _release(self) -> None:
        self._deadline = None
        for lease in self.leases.values():
            if lease.is_held:
                lease.apply(AllocationEvent.RELEASED)
            self._orders.add(lease.agent)

    def _lease(self, kind: AgentKind, place: int, agent: Agent, term: int) -> None:
        identifier = f"{self.job.id}-{term}-{kind}-{place}"
        lease = Lease(identifier, term, self.job.id, agent.id, agent.name, kind, place)
        self.leases[identifier] = agent.leases[identifier] = lease

    def _tell(self, leases: list[Lease]) -> None:
        for lease in leases:
            if not lease.told:
                lease.told = True
                self._orders.add(lease.agent)

    def _check_term(self, lease: Lease, term: int) -> None:
        if term != lease.term:
            raise StaleTermError(f"{lease.who} holds term {lease.term} of allocation {lease.id}, not {term}")
        if not lease.is_held or self.state.is_terminal:
            raise StaleTermError(f"allocation {lease.id} of {lease.who} was released")

    def _step(self) -> int:
        """The slowest worker's."""
        return min((worker.step for worker in self.workers), default=0)

    def _at(self, lease: Lease) -> str:
        if self.state in {JobState.PENDING, JobState.STARTING}:
            return "before the first step"
        step = lease.step if lease.kind is AgentKind.WORKER else self._step()
        return f"at step {step} of {self.plan.steps}"

    def _progress(self, now: Moment, *, last: bool = False) -> None:
        done = self._log.step(self._step(), now, last=last)
        if done is not None:
            progress = Progress(step=done.step, steps=done.steps, pass_number=done.pass_number)
            self._set(progress=progress)
            self._append(done, now)

    def _set(self, **changes: object) -> None:
        self.job = self.job.model_copy(update=changes)
        self._log.save(self.job)

    def _append(self, body: EventBody, now: Moment) -> None:
        self._log.append(body, now)

    def _say(self, message: str, now: Moment, level: LogLevel = "info") -> None:
        self._append(LogLine(level=level, source="server", message=message), now)
