"""What the mind tells the hands to do. They are carried out in order, those of one answer together."""

from __future__ import annotations

from dataclasses import dataclass

from weft.api.event import Event
from weft.api.job import Job


@dataclass(frozen=True, slots=True)
class Append:
    """Append to the job's event log."""

    job: str
    event: Event


@dataclass(frozen=True, slots=True)
class Save:
    """Replace what is kept of the job."""

    job: Job


@dataclass(frozen=True, slots=True)
class Order:
    """The agent's orders have changed, or it is no agent any more: wake its heartbeat."""

    agent: str


@dataclass(frozen=True, slots=True)
class Close:
    """The job has ended: wake who waits for it, delete what only a running job needs."""

    job: str
    succeeded: bool


Instruction = Append | Save | Order | Close
