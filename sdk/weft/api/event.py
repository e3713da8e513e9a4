"""The event log of a job: state, metrics and logs in one append-only sequence."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, ClassVar, Literal

from pydantic import Field, computed_field

from weft.api.base import Measured, Model
from weft.api.earlier import Renamed
from weft.api.lifecycle import JobState

LogLevel = Literal["debug", "info", "warning", "error"]


class StateChanged(Model):
    kind: Literal["state"] = "state"
    state: JobState
    reason: str | None = None


class StepDone(Renamed):
    """How far the slowest worker is; sent about once a second. Rates are over the time since the previous one."""

    EARLIER: ClassVar[Mapping[str, str]] = {"pass_number": "epoch"}

    kind: Literal["step"] = "step"
    step: int
    steps: int
    epoch: int
    samples_per_second: float

    @computed_field  # type: ignore[prop-decorator]  # as pydantic has it
    @property
    def pass_number(self) -> int:
        """The earlier name of `epoch`."""
        return self.epoch


class MetricTaken(Model):
    """A mean over all slots' samples: of the training steps since the last one, or of the evaluation rows."""

    kind: Literal["metric"] = "metric"
    split: Literal["train", "evaluate"]
    step: int
    values: dict[str, Measured]
    samples: int
    not_finite: dict[str, int] = Field(default_factory=dict)
    """For each value that is not a finite number, the first step of these of which it was none, on any slot."""
    bad_data: str = ""
    """Where the data of the first such step has a number that is not finite, if it has: `row 7 of column 'x'`."""


class LogLine(Model):
    kind: Literal["log"] = "log"
    level: LogLevel
    source: str
    """Who says it: `server`, `worker 0`, `shard 1`."""
    message: str


EventBody = Annotated[StateChanged | StepDone | MetricTaken | LogLine, Field(discriminator="kind")]


class Event(Model):
    """One entry. `seq` counts from 1 without gaps within a job; it is the SSE stream's `id`."""

    seq: int
    at: datetime
    body: EventBody


class EventPage(Model):
    """Entries of a job's log. `after` is where the next page begins; no more will come once `ended` and empty."""

    events: list[Event]
    after: int
    ended: bool
