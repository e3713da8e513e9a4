"""What the state machine has the service do. Instructions are carried out in order, those of one answer together.

All but `Order` are written by the records in one transaction; an agent is told its new orders after that, so nothing
that an agent was told is unknown to a server that starts again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.api.agent import Orders, SetDone, Snapshot
from weft.api.event import Event
from weft.api.job import Job
from weft_server.planning.plan import JobPlan


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
class Remember:
    """Replace parts of what is remembered of a job, each a JSON document by name; None: it is not needed any more.

    They are dropped when the job ends.
    """

    job: str
    parts: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Replan:
    """The job is run otherwise from now on: replace what it was submitted as, JSON of a JobSpec, and its plan."""

    job: str
    spec: str
    plan: JobPlan


@dataclass(frozen=True, slots=True)
class RememberAgent:
    """Replace what is kept of an agent; None: it is none any more."""

    agent: str
    document: str | None


@dataclass(frozen=True, slots=True)
class Order:
    """The agent's orders have changed: wake its heartbeat. None: it is no agent any more."""

    agent: str
    orders: Orders | None = None


@dataclass(frozen=True, slots=True)
class SetEnded:
    """Parameters of a running job were set, or could not be: wake who waits for it, delete the file."""

    job: str
    done: SetDone
    file: str


@dataclass(frozen=True, slots=True)
class KeepSnapshot:
    """Look whether all files of a snapshot are there, and write its manifest; say what came of it."""

    job: str
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class TidySnapshots:
    """Have a place for the job's snapshots, and delete what it holds but these folders. None: delete the place.

    Folders of a later term than `since`, or of a later step of that term, stay too: the job's processes may have begun
    to write them when this is carried out. (term, step); None where no process of the job writes any more."""

    job: str
    keep: tuple[str, ...] | None
    since: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Close:
    """The job has ended: wake who waits for it, delete what only a running job needs."""

    job: str
    succeeded: bool


Instruction = (
    Append | Save | Remember | Replan | RememberAgent | Order | SetEnded | KeepSnapshot | TidySnapshots | Close
)
