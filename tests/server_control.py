"""Drives the server's state machine in tests: a clock set by hand, agents without processes, jobs without records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from server_specs import plan
from weft.api.agent import AgentKind, LogReport, MetricReport, Orders, Registration, Report
from weft.api.event import Event, LogLine, StateChanged
from weft.api.job import Job, Progress
from weft.api.lifecycle import AllocationEvent, JobState
from weft_server.control.clock import Timestamp
from weft_server.control.controller import Controller
from weft_server.control.instructions import (
    Append,
    Close,
    Instruction,
    KeepSnapshot,
    Order,
    Remember,
    Replan,
    Save,
    TidySnapshots,
)
from weft_server.control.leases import Lease
from weft_server.control.limits import Limits
from weft_server.control.memory import KeptJob
from weft_server.planning.plan import JobPlan

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)


@dataclass
class World:
    """A controller, and everything that it has ordered so far."""

    limits: Limits = field(default_factory=lambda: Limits(lost_after_s=5.0))
    """Those who are silent are lost at once, without being suspected first."""
    seconds: float = 1000.0
    set_by_s: float = 0.0
    """By how much the calendar was set forward; limits know nothing of it."""
    events: dict[str, list[Event]] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    closed: list[str] = field(default_factory=list)
    ordered: list[str] = field(default_factory=list)
    to_check: list[KeepSnapshot] = field(default_factory=list)
    in_use: dict[str, tuple[str, ...] | None] = field(default_factory=dict)
    deleted_to: dict[str, tuple[int, int] | None] = field(default_factory=dict)
    """(term, step) of the last folder that may be deleted of each job's snapshots, where those in use are known."""
    """By job: the folders of snapshots that were not deleted when it was tidied up last; None: all were."""
    replanned: list[Replan] = field(default_factory=list)
    parts: dict[str, dict[str, str]] = field(default_factory=dict)
    """What is remembered of jobs."""
    seqs: dict[str, Iterator[int]] = field(default_factory=dict)
    pids: Iterator[int] = field(default_factory=lambda: count(100))

    def __post_init__(self) -> None:
        ids = (f"a{number}" for number in count())
        self.controller = Controller(self.limits, lambda: next(ids))

    @property
    def now(self) -> Timestamp:
        return Timestamp(EPOCH + timedelta(seconds=self.seconds + self.set_by_s), self.seconds)

    def carry_out(self, instructions: Sequence[Instruction]) -> None:
        """Does what the service would do, in memory, and checks what must always hold."""
        for each in instructions:
            match each:
                case Append(job, event):
                    log = self.events[job]
                    assert event.seq == len(log) + 1, "a job's events are numbered without gaps"
                    assert not (log and is_end(log[-1])), "nothing follows the event that ends a job"
                    log.append(event)
                case Save(job):
                    self.jobs[job.id] = job
                case Close(job):
                    self.closed.append(job)
                case Order(agent):
                    self.ordered.append(agent)
                case KeepSnapshot():
                    self.to_check.append(each)
                case TidySnapshots(job, keep, since):
                    self.in_use[job], self.deleted_to[job] = keep, since
                case Replan():
                    self.replanned.append(each)
                case Remember(job, parts):
                    known = self.parts.setdefault(job, {})
                    known.update({name: text for name, text in parts.items() if text is not None})
                    for name in [name for name, text in parts.items() if text is None]:
                        known.pop(name, None)

    def agent(self, kind: AgentKind, name: str, pid: int | None = None) -> str:
        pid = next(self.pids) if pid is None else pid
        device = f"device of process {pid}" if kind is AgentKind.WORKER else ""
        registration = Registration(kind=kind, name=name, pid=pid, device=device)
        registered, instructions = self.controller.register(registration, self.now)
        self.carry_out(instructions)
        return registered.id

    def agents(self, workers: int = 2, shards: int = 1) -> tuple[list[str], list[str]]:
        """(workers, shards): `worker-0`, `worker-1`, ... and `shard-0`, ..."""
        return (
            [self.agent(AgentKind.WORKER, f"worker-{number}") for number in range(workers)],
            [self.agent(AgentKind.SHARD, f"shard-{number}") for number in range(shards)],
        )

    def submit(self, job_plan: JobPlan | None = None, job: str = "job") -> str:
        job_plan = job_plan or plan()
        new = Job(
            id=job,
            name=job_plan.name,
            state=JobState.PENDING,
            progress=Progress(steps=job_plan.steps),
            workers=job_plan.workers,
            shards=job_plan.shards,
            created_at=self.now.at,
        )
        self.jobs[job] = new
        self.events[job] = [Event(seq=1, at=self.now.at, body=StateChanged(state=JobState.PENDING))]
        self.carry_out(self.controller.submit(new, job_plan, 1, self.now))
        return job

    def lease(self, kind: AgentKind, place: int, job: str = "job") -> Lease:
        run = self.controller.run_of(job)
        assert run is not None
        return (run.leases.workers if kind is AgentKind.WORKER else run.leases.shards)[place]

    def report(
        self,
        lease: Lease,
        event: AllocationEvent | None = None,
        *,
        term: int | None = None,
        seq: int | None = None,
        metrics: Sequence[MetricReport] = (),
        logs: Sequence[LogReport] = (),
        **facts: Any,
    ) -> None:
        if lease.kind is AgentKind.SHARD and event is AllocationEvent.READY:
            facts = {"endpoint": f"tcp://{lease.agent_name}:5000", **facts}
        counter = self.seqs.setdefault(lease.id, count(1))
        report = Report(
            term=lease.term if term is None else term,
            seq=next(counter) if seq is None else seq,
            event=event,
            metrics=list(metrics),
            logs=list(logs),
            **facts,
        )
        self.carry_out(self.controller.report(lease.id, report, self.now))

    def all_report(self, kind: AgentKind, event: AllocationEvent, job: str = "job", **facts: Any) -> None:
        run = self.controller.run_of(job)
        assert run is not None
        for lease in run.leases.workers if kind is AgentKind.WORKER else run.leases.shards:
            self.report(lease, event, **facts)

    def bring_to(self, state: JobState, job: str = "job") -> None:
        """Leads a placed job to the state, one lifecycle step after the other."""
        worker, shard = AgentKind.WORKER, AgentKind.SHARD
        if state in {JobState.RUNNING, JobState.FINISHING, JobState.SUCCEEDED}:
            self.all_report(shard, AllocationEvent.READY, job)
            self.all_report(worker, AllocationEvent.READY, job)
            self.all_report(worker, AllocationEvent.RUNNING, job)
        if state in {JobState.FINISHING, JobState.SUCCEEDED}:
            self.all_report(worker, AllocationEvent.DONE, job, step=self.jobs[job].progress.steps)
        if state is JobState.SUCCEEDED:
            self.keep(job)
        assert self.jobs[job].state is state

    def keep(self, job: str = "job") -> None:
        """The keeper's final parameters arrive."""
        run = self.controller.run_of(job)
        assert run is not None
        keeper, steps = run.keeper, run.plan.steps
        self.carry_out(self.controller.keep(keeper.id, keeper.term, steps, True, self.now))

    def begin_again(self, job: str = "job", job_plan: JobPlan | None = None) -> None:
        """Another process of the server takes up what this one has written down of a job. Nobody is registered."""
        kept = KeptJob(self.jobs[job], job_plan or plan(), len(self.events[job]), self.parts[job])
        ids = (f"b{number}" for number in count())
        self.controller = Controller(self.limits, lambda: next(ids))
        self.controller.restore([], [kept], self.now)
        self.carry_out(self.controller.tick(self.now))

    def heard(self, *agents: str) -> None:
        for agent in agents:
            self.carry_out(self.controller.heard(agent, self.now))

    def tick(self, seconds: float = 0.2, alive: Sequence[str] = ()) -> None:
        """Lets time pass in ticks; `alive` send their heartbeats."""
        end = self.seconds + seconds
        while self.seconds < end - 1e-9:
            self.seconds = min(end, self.seconds + 0.2)
            self.heard(*alive)
            self.carry_out(self.controller.tick(self.now))

    def orders(self, agent: str) -> Orders:
        return self.controller.orders(agent)

    def states(self, job: str = "job") -> list[str]:
        return [event.body.state.value for event in self.events[job] if isinstance(event.body, StateChanged)]

    def said(self, job: str = "job") -> list[str]:
        return [event.body.message for event in self.events[job] if isinstance(event.body, LogLine)]


def is_end(event: Event) -> bool:
    return isinstance(event.body, StateChanged) and event.body.state.is_terminal
