"""Which pending jobs start now, and on whom; and what the others wait for. Pure.

A job is placed whole (a gang) or not at all: `workers` workers that hold nothing, and `shards` different shards, which
may serve many jobs; the fewest loaded are taken first. The project whose jobs hold the fewest workers comes first, and
of its jobs the oldest; of projects that hold as many, the one that was placed longest ago. A job that waits for workers
that others hold lets later ones go before it for `PATIENCE_S`; after that the free workers are kept for it, for
`KEPT_S` at a time. One that asks for more than is registered holds nobody up.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from weft.api.agent import AgentKind
from weft_server.planning.plan import JobPlan

PATIENCE_S = 60.0
"""How long younger jobs may go before one that waits for workers: long enough to fill gaps, too short to starve it."""

KEPT_S = 600.0
"""How long workers are then kept for it, and how long they are not, by turns: what it waits for may never end."""

_PROGRAMS: Final = {AgentKind.WORKER: "weft_worker", AgentKind.SHARD: "weft_kvstore"}
"""What a further agent is started with."""


@dataclass(frozen=True, slots=True)
class PendingJob:
    id: str
    workers: int
    shards: int
    since: float
    """Seconds at which it was submitted, or first seen by this process."""
    worker_bytes: int = 0
    """Memory that each worker's process needs."""
    shard_bytes: int = 0
    project: str | None = None
    """Whose turn counts. None for what runs, or has run, and goes on: it comes before all that begins."""

    @classmethod
    def of(cls, job: str, plan: JobPlan, since: float, project: str | None) -> PendingJob:
        return cls(job, plan.workers, plan.shards, since, plan.worker_bytes, plan.shard_bytes, project)


@dataclass(frozen=True, slots=True)
class AgentView:
    """An agent that is alive. `held` counts its leases."""

    id: str
    kind: AgentKind
    name: str
    number: int
    """Counts registrations."""
    held: int
    memory_bytes: float = math.inf
    """What a job's process may take there."""

    @property
    def order(self) -> tuple[list[tuple[int, str]], int]:
        """By name with its numbers as numbers, then by registration: `worker-2` fills a slot before `worker-10`."""
        parts = re.findall(r"\d+|\D+", self.name)
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts], self.number


@dataclass(frozen=True, slots=True)
class View:
    """Jobs oldest first, and who is there."""

    jobs: Sequence[PendingJob]
    agents: Sequence[AgentView]
    silent: Sequence[AgentKind] = ()
    """The kinds of those that may come back, and get nothing before."""
    held: Mapping[str, int] = field(default_factory=dict)
    """Workers that the jobs of a project hold."""
    placed: Mapping[str, int] = field(default_factory=dict)
    """The number of the newest placement of a project's job, counted over all: who was placed longest ago is next of
    equals."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Agents by slot and by shard number. `keeper` is the slot that brings the parameters to the server."""

    job: str
    workers: tuple[str, ...]
    shards: tuple[str, ...]
    keeper: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What starts, and for every other pending job the reason why it does not."""

    placements: tuple[Placement, ...]
    waiting: dict[str, str]
    until: float = math.inf
    """Seconds at which another decision may follow from the same jobs and agents."""


@dataclass
class _Room:
    """What is left while jobs are placed one after the other."""

    workers: list[AgentView]
    free: list[AgentView]
    shards: list[AgentView]
    load: dict[str, int] = field(default_factory=dict)
    kept_for: str | None = None
    silent: Sequence[AgentKind] = ()


def schedule(view: View, now: float) -> Decision:
    """Decides for every pending job. The same view gives the same decision."""
    workers = [agent for agent in view.agents if agent.kind is AgentKind.WORKER]
    room = _Room(
        workers=workers,
        free=sorted((agent for agent in workers if agent.held == 0), key=lambda agent: agent.order),
        shards=[agent for agent in view.agents if agent.kind is AgentKind.SHARD],
        load={agent.id: agent.held for agent in view.agents},
        silent=view.silent,
    )
    placements: list[Placement] = []
    waiting: dict[str, str] = {}
    until = math.inf
    turns = _Turns(view)
    for job in turns:
        reason = _lacking(job, room)
        if reason is None:
            placements.append(_place(job, room))
            turns.placed(job)
            continue
        waiting[job.id] = reason
        fits_when_free = job.workers <= len(fit(room.workers, job.worker_bytes)) and job.shards <= len(
            fit(room.shards, job.shard_bytes)
        )
        if room.kept_for is None and fits_when_free:
            turns_over = math.floor((now - job.since - PATIENCE_S) / KEPT_S)
            if now >= job.since + PATIENCE_S and turns_over % 2 == 0:
                room.kept_for = job.id
            until = min(until, job.since + PATIENCE_S + max(turns_over + 1, 0) * KEPT_S)
    return Decision(tuple(placements), waiting, until)


class _Turns:
    """All pending jobs in their order. What is placed meanwhile counts for its project."""

    def __init__(self, view: View) -> None:
        self._first = [job for job in view.jobs if job.project is None]
        self._held, self._placed = dict(view.held), dict(view.placed)
        self._newest = max(self._placed.values(), default=0)
        self._queues: dict[str, deque[tuple[int, PendingJob]]] = {}
        for number, job in enumerate(view.jobs):
            if job.project is not None:
                self._queues.setdefault(job.project, deque()).append((number, job))

    def __iter__(self) -> Iterator[PendingJob]:
        yield from self._first
        heap = [self._turn(project) for project in self._queues]
        heapq.heapify(heap)
        while heap:
            *_, project = heap[0]
            queue = self._queues[project]
            yield queue.popleft()[1]
            if queue:
                heapq.heapreplace(heap, self._turn(project))
            else:
                heapq.heappop(heap)

    def placed(self, job: PendingJob) -> None:
        if job.project is not None:
            self._held[job.project] = self._held.get(job.project, 0) + job.workers
            self._newest = self._placed[job.project] = self._newest + 1

    def _turn(self, project: str) -> tuple[int, int, int, str]:
        return self._held.get(project, 0), self._placed.get(project, 0), self._queues[project][0][0], project


def fit(agents: Sequence[AgentView], memory_bytes: int) -> list[AgentView]:
    """Those on which a job's process may take so much."""
    return [each for each in agents if each.memory_bytes >= memory_bytes]


def _lacking(job: PendingJob, room: _Room) -> str | None:
    """Why the job cannot start; None when it can."""
    shards = fit(room.shards, job.shard_bytes)
    if job.shards > len(shards):
        silent = _silent(room, AgentKind.SHARD)
        advice = silent or _advice(job, AgentKind.SHARD, job.shards, len(shards))
        what = _needed(job.shards, "shard", job.shard_bytes, len(shards) < len(room.shards))
        return f"needs {what}; {_are(len(shards))} registered{advice}"
    workers, free = fit(room.workers, job.worker_bytes), fit(room.free, job.worker_bytes)
    what = _needed(job.workers, "worker", job.worker_bytes, len(workers) < len(room.workers))
    if job.workers > len(free):
        advice = _silent(room, AgentKind.WORKER) or _advice(job, AgentKind.WORKER, job.workers, len(workers))
        if job.workers <= len(workers):
            again = "`weft up` has started a lost one again, or " if job.project is None else ""
            advice = f"{_silent(room, AgentKind.WORKER)}: it starts when {again}other jobs end"
        return f"needs {what}; {_are(len(workers))} registered, {_are(len(free))} free{advice}"
    if room.kept_for is not None:
        return f"needs {what}; the free ones are kept for job {room.kept_for}, whose turn is first"
    return None


def _place(job: PendingJob, room: _Room) -> Placement:
    workers = fit(room.free, job.worker_bytes)[: job.workers]
    room.free = [each for each in room.free if each not in workers]
    shards = sorted(fit(room.shards, job.shard_bytes), key=lambda shard: (room.load[shard.id], shard.order))[
        : job.shards
    ]
    for shard in shards:
        room.load[shard.id] += 1
    # Any worker can keep the parameters; the one that has been there longest has shown that it stays.
    keeper = min(range(len(workers)), key=lambda slot: workers[slot].number)
    return Placement(job.id, tuple(each.id for each in workers), tuple(each.id for each in shards), keeper)


def _needed(number: int, noun: str, memory_bytes: int, is_scarce: bool) -> str:
    """Memory is named where some agents have less."""
    return f"{_count(number, noun)}{f' that let a job have {memory_bytes} bytes of memory' if is_scarce else ''}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _silent(room: _Room, kind: AgentKind) -> str:
    number = sum(each is kind for each in room.silent)
    return f", {number} more {'is' if number == 1 else 'are'} silent" if number else ""


def _advice(job: PendingJob, kind: AgentKind, wanted: int, there: int) -> str:
    """What to do about it. A job that goes on has lost an agent, which `weft up` starts again by itself."""
    more = f"start {wanted - there} more (python -m {_PROGRAMS[kind]} --server URL)"
    if job.project is None:
        return f": `weft up` starts its own again; otherwise {more}"
    return f": {more}{f', or submit it for at most {there}' if there else ''}"


def _are(number: int) -> str:
    return f"{number} is" if number == 1 else f"{number} are"
