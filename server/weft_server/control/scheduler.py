"""Which pending jobs start now, and on whom; and what the others wait for. Pure.

A job is placed whole (a gang) or not at all: `workers` workers that hold nothing, and `shards` different shards, which
may serve many jobs; the fewest loaded are taken first. The oldest job comes first. One that waits for workers that
others hold lets younger jobs go before it for `PATIENCE_S`; after that the free workers are kept for it. One that asks
for more than is registered holds nobody up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from weft.api.agent import AgentKind

PATIENCE_S = 60.0
"""How long younger jobs may go before one that waits for workers: long enough to fill gaps, too short to starve it."""


@dataclass(frozen=True, slots=True)
class PendingJob:
    id: str
    workers: int
    shards: int
    since: float
    """Seconds at which it was submitted, or first seen by this process."""


@dataclass(frozen=True, slots=True)
class AgentView:
    """An agent that is alive. `held` counts its leases."""

    id: str
    kind: AgentKind
    name: str
    number: int
    """Counts registrations."""
    held: int

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

    workers: int
    free: list[AgentView]
    shards: list[AgentView]
    load: dict[str, int] = field(default_factory=dict)
    kept_for: str | None = None
    silent: Sequence[AgentKind] = ()


def schedule(view: View, now: float) -> Decision:
    """Decides for every pending job. The same view gives the same decision."""
    workers = [agent for agent in view.agents if agent.kind is AgentKind.WORKER]
    room = _Room(
        workers=len(workers),
        free=sorted((agent for agent in workers if agent.held == 0), key=lambda agent: agent.order),
        shards=[agent for agent in view.agents if agent.kind is AgentKind.SHARD],
        load={agent.id: agent.held for agent in view.agents},
        silent=view.silent,
    )
    placements: list[Placement] = []
    waiting: dict[str, str] = {}
    until = math.inf
    for job in view.jobs:
        reason = _lacking(job, room)
        if reason is None:
            placements.append(_place(job, room))
            continue
        waiting[job.id] = reason
        fits_when_free = job.workers <= room.workers and job.shards <= len(room.shards)
        if room.kept_for is None and fits_when_free:
            if now >= job.since + PATIENCE_S:
                room.kept_for = job.id
            else:
                until = min(until, job.since + PATIENCE_S)
    return Decision(tuple(placements), waiting, until)


def _lacking(job: PendingJob, room: _Room) -> str | None:
    """Why the job cannot start; None when it can."""
    if job.shards > len(room.shards):
        silent = _silent(room, AgentKind.SHARD)
        advice = silent or _advice(job.shards, len(room.shards))
        return f"needs {_count(job.shards, 'shard')}; {_are(len(room.shards))} registered{advice}"
    if job.workers > room.workers or job.workers > len(room.free):
        advice = _silent(room, AgentKind.WORKER) or _advice(job.workers, room.workers)
        if job.workers <= room.workers:
            advice = f"{_silent(room, AgentKind.WORKER)}: it starts when other jobs end"
        return (
            f"needs {_count(job.workers, 'worker')}; {_are(room.workers)} registered, {_are(len(room.free))} free"
            f"{advice}"
        )
    if room.kept_for is not None:
        return f"needs {_count(job.workers, 'worker')}; the free ones are kept for job {room.kept_for}, which is older"
    return None


def _place(job: PendingJob, room: _Room) -> Placement:
    workers, room.free = room.free[: job.workers], room.free[job.workers :]
    shards = sorted(room.shards, key=lambda shard: (room.load[shard.id], shard.order))[: job.shards]
    for shard in shards:
        room.load[shard.id] += 1
    # Any worker can keep the parameters; the one that has been there longest has shown that it stays.
    keeper = min(range(len(workers)), key=lambda slot: workers[slot].number)
    return Placement(job.id, tuple(each.id for each in workers), tuple(each.id for each in shards), keeper)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _silent(room: _Room, kind: AgentKind) -> str:
    number = sum(each is kind for each in room.silent)
    return f", {number} more {'is' if number == 1 else 'are'} silent" if number else ""


def _advice(wanted: int, there: int) -> str:
    return f": start {wanted - there} more{f', or submit it for at most {there}' if there else ''}"


def _are(number: int) -> str:
    return f"{number} is" if number == 1 else f"{number} are"
