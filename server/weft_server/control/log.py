"""A job's event log as the mind sees it: numbers the entries, and says how fast the job is. Pure."""

from __future__ import annotations

from datetime import datetime

from weft.api.event import Event, EventBody, StepDone
from weft.api.job import Job
from weft_server.control.clock import Moment
from weft_server.control.instructions import Append, Instruction, Save
from weft_server.plan import JobPlan

STEP_INTERVAL_S = 1.0
"""Between two entries that tell progress: often enough to watch, few enough to keep for ever."""


class JobLog:
    """Entries not carried out yet, in order. `seq` is the newest entry's number."""

    def __init__(
        self, job: str, plan: JobPlan, seq: int = 0, *, told_step: int = 0, told: Moment | None = None
    ) -> None:
        """`told_step`, `told`: of which step progress was told last, and when."""
        self.seq = seq
        self._job = job
        self._plan = plan
        self._entries: list[Instruction] = []
        self._saved: Job | None = None
        self._told_step = told_step
        self._told = told

    @property
    def told_at(self) -> datetime | None:
        """When progress was told last."""
        return None if self._told is None else self._told.at

    def append(self, body: EventBody, now: Moment) -> None:
        self.seq += 1
        self._entries.append(Append(self._job, Event(seq=self.seq, at=now.at, body=body)))

    def save(self, job: Job) -> None:
        """The job has changed; only the newest version is kept."""
        self._saved = job

    def start_rate(self, now: Moment) -> None:
        """Rates count from here."""
        self._told = now

    def begin_anew(self, step: int) -> None:
        """The job goes on from that step."""
        self._told_step = step

    def step(self, step: int, now: Moment, *, last: bool) -> StepDone | None:
        """An entry about progress, if there is any and it is due; the last step is always told."""
        passed = now.seconds - (0.0 if self._told is None else self._told.seconds)
        if step <= self._told_step or (passed < STEP_INTERVAL_S and not last):
            return None
        samples = self._plan.samples_until(step) - self._plan.samples_until(self._told_step)
        self._told_step, self._told = step, now
        return StepDone(
            step=step,
            steps=self._plan.steps,
            epoch=self._plan.epochs_begun(step),
            samples_per_second=samples / passed if passed > 0 else 0.0,
        )

    def drain(self) -> list[Instruction]:
        """What is to be carried out since the last call."""
        out, self._entries = self._entries, []
        if self._saved is not None:
            out.append(Save(self._saved))
            self._saved = None
        return out
