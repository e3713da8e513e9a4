"""What is remembered of jobs and agents, so that a server that starts again goes on where it was.

A job's memory is parts by name: `run`, `lease/ID` for each place, `sum/SPLIT/STEP/SLOT` for each metric that waits for
other slots, `set/NUMBER` for parameters that are to be set, `scaling` for a plan with other numbers of
processes. A part is written when it has changed, never otherwise.
Seconds of a process's clock are not kept: deadlines begin anew, and silence counts after a grace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import Field, field_validator

from weft.api.agent import AgentKind, CurvePair, Registration, Snapshot, SnapshotDone
from weft.api.base import Model
from weft.api.job import Job, Traffic
from weft.api.lifecycle import AllocationState
from weft_server.control.clock import Timestamp
from weft_server.planning.plan import Given, JobPlan

RUN = "run"
SCALING = "scaling"
LEASE, SUM, SET = "lease/", "sum/", "set/"


class LeaseMemory(Model):
    """See `weft_server.control.leases.Lease`."""

    id: str
    term: int
    agent: str
    agent_name: str
    kind: AgentKind
    place: int
    state: AllocationState
    seq: int
    step: int
    told: bool
    incarnation: int = 1
    traffic: Traffic


class JobKeys(Model):
    """The CURVE keys of a job: of each shard by number, and those that its workers share."""

    shards: list[CurvePair]
    workers: CurvePair


class RunMemory(Model, frozen=False):
    """What there is of a run beside its leases: one record, which all parts of the run read and change.

    It is written down when a field's value differs from the last time, so lists and dictionaries are replaced, never
    changed in place.
    """

    term: int = 0
    endpoints: list[str] = Field(default_factory=list)
    """The shards'; empty before the job is placed."""
    keys: JobKeys | None = None
    """Made when the job is placed, where links are encrypted. They go with the rest of this at the job's end."""
    keeper: str | None = None
    """The keeper's lease."""
    has_final: bool = False
    given: Given | None = None
    sets: int = 0
    """Sets asked for so far; the newest one's number."""
    set_at: int = -1
    """The step from which the values hold that were set last."""
    snapshots: list[Snapshot] = Field(default_factory=list)
    """Those that are kept, oldest first."""
    unreadable: list[Snapshot] = Field(default_factory=list)
    """Those that a process could not read."""
    last_files: dict[str, SnapshotDone] = Field(default_factory=dict)
    """What was written of the snapshot of the last step, by lease."""
    began_with: Snapshot | None = None
    """What the job went on from when it was placed last."""
    traffic: Traffic = Field(default_factory=Traffic)
    """Of the workers whose leases are gone."""
    vacant: list[int] = Field(default_factory=list)
    """Slots whose worker was lost, and that no other has taken over yet."""
    stopping: str | None = None
    """Why it is to end at its next snapshot, or with its best one."""
    is_asked_to_stop: bool = False
    """Whether that was asked for by a client."""
    end: int | None = None
    """The step at which it was stopped."""
    evaluated: dict[int, float] = Field(default_factory=dict)
    """The metric by which the job ends early: of the newest steps, and of the best one."""
    not_finite: dict[str, int] = Field(default_factory=dict)
    """Metrics that are not finite: the first step of those in a row that were not."""
    measured: dict[str, int] = Field(default_factory=dict)
    """By split: the newest step whose metrics were told."""
    ran_s: float = 0.0
    """Seconds since the job started, at its last evaluation. Time in which no server ran is not among them."""
    told_at: datetime | None = None
    """When progress was told last."""

    @classmethod
    def of(cls, plan: JobPlan) -> RunMemory:
        """Of a run that begins."""
        return cls(given=plan.given, began_with=plan.resume, snapshots=[] if plan.resume is None else [plan.resume])

    def write(self, parts: Parts) -> None:
        """Writes it down where it has changed."""
        parts.put(RUN, dict(iter(self)), self.model_dump_json)

    @property
    def first_step(self) -> int:
        """Where the job goes on, or begins."""
        return 0 if self.began_with is None else self.began_with.step

    @property
    def newest(self) -> Snapshot | None:
        """What the job goes on from."""
        return self.snapshots[-1] if self.snapshots else None

    def can_go_on(self, snapshot: Snapshot | None) -> bool:
        """Whether what the job computes from there on depends on the job alone: nobody has set values since."""
        return not self.sets or (snapshot is not None and snapshot.step > self.set_at)

    def up_to(self, step: int | None) -> Snapshot | None:
        """The newest snapshot that is not after that step."""
        return next((each for each in reversed(self.snapshots) if step is not None and each.step <= step), None)

    def told(self, now: Timestamp) -> Timestamp | None:
        """`told_at` in this process's seconds: another's mean nothing here, what has passed is of the calendar."""
        if self.told_at is None:
            return None
        return Timestamp(self.told_at, now.seconds - max(0.0, (now.at - self.told_at).total_seconds()))


class SetMemory(Model):
    """Parameters that the keeper has not set yet."""

    number: int
    given: Given


class Scaling(Model):
    """How a job is to be run from its next snapshot on: as it would have been submitted, JSON, and the plan of it."""

    spec: str
    plan: JobPlan


class AgentMemory(Model):
    """A registered agent. `number` counts registrations: the older of two equals comes first."""

    id: str
    number: int
    registration: Registration
    registered_at: datetime

    @field_validator("registration", mode="before")
    @classmethod
    def _without_endpoint(cls, written: Any) -> Any:
        """Shards of an earlier release registered with one."""
        return (
            {name: value for name, value in written.items() if name != "endpoint"}
            if isinstance(written, dict)
            else written
        )


@dataclass(frozen=True, slots=True)
class KeptJob:
    """A job that had not ended when the server did: its newest event's number, and what was remembered of it."""

    job: Job
    plan: JobPlan
    events: int
    parts: Mapping[str, str]


class Parts:
    """The parts of one job as they were last written, and which have changed since."""

    def __init__(self, written: Mapping[str, str] | None = None) -> None:
        self._known: dict[str, object] = {}
        self._documents: dict[str, str] = dict(written or {})
        self._changed: dict[str, str | None] = {}

    def put(self, part: str, facts: object, document: Callable[[], str]) -> None:
        """The part is `document()`, made only where `facts`, what it is made of, differs from the last time's."""
        if part in self._known and self._known[part] == facts:
            return
        self._known[part] = facts
        text = document()
        if self._documents.get(part) != text:
            self._documents[part] = self._changed[part] = text

    def drop(self, part: str) -> None:
        """The part is not needed any more."""
        self._known.pop(part, None)
        if self._documents.pop(part, None) is not None:
            self._changed[part] = None

    def drain(self) -> dict[str, str | None]:
        """What is to be written since the last call."""
        out, self._changed = self._changed, {}
        return out


@dataclass
class RunState:
    """What all that decides about a run has in common. `plan` is the one that holds now: of a job that was stopped it
    has fewer steps than were asked for."""

    job: str
    plan: JobPlan
    memory: RunMemory
    parts: Parts


def under(parts: Mapping[str, str], prefix: str) -> Iterable[tuple[str, str]]:
    """(name, document) of the parts below a prefix."""
    return ((name, document) for name, document in parts.items() if name.startswith(prefix))
