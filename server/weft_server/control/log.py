"""What is told of a job: its record as users see it, and its numbered event log with how fast the job is. Pure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from weft.api.event import Event, EventBody, LogLevel, LogLine, StepDone
from weft.api.job import Job, Progress, Traffic
from weft_server.control.clock import Timestamp
from weft_server.control.instructions import Append, Instruction, Save
from weft_server.planning.plan import JobPlan

STEP_INTERVAL_S = 1.0
"""Between two entries that tell progress: often enough to watch, few enough to keep for ever."""


class JobLog:
    """Entries not carried out yet, in order. `seq` is the newest entry's number."""

    def __init__(self, job: Job, plan: JobPlan, seq: int, told: Timestamp | None = None) -> None:
        """`told`: when progress was told last."""
        self.job = job
        self.seq = seq
        self._plan = plan
        self._entries: list[Instruction] = []
        self._is_changed = False
        self._told_step = job.progress.step
        self._told = told
        self._before: tuple[int, float] | None = None

    @property
    def told_at(self) -> datetime | None:
        """When progress was told last."""
        return None if self._told is None else self._told.at

    def set(self, **changes: object) -> None:
        """The job's record has changed; only its newest version is saved."""
        self.job = self.job.model_copy(update=changes)
        self._is_changed = True

    def append(self, body: EventBody, now: Timestamp) -> None:
        self.seq += 1
        self._entries.append(Append(self.job.id, Event(seq=self.seq, at=now.at, body=body)))

    def add(self, line: LogLine | None, now: Timestamp) -> None:
        """Appends a line, if there is one."""
        if line is not None:
            self.append(line, now)

    def say(self, message: str, now: Timestamp, level: LogLevel = "info") -> None:
        """Appends a line of the server's own."""
        self.append(LogLine(level=level, source="server", message=message), now)

    def start_rate(self, now: Timestamp) -> None:
        """Rates count from here."""
        self._told, self._before = now, None

    def begin_anew(self, step: int) -> None:
        """The job goes on from that step."""
        self._told_step, self._before = step, None

    def progress(self, step: int, traffic: Callable[[], Traffic], now: Timestamp, *, last: bool = False) -> bool:
        """So many steps are done: whether there is any progress to tell, and it is due; the last is always told."""
        since = (self._told_step, 0.0 if self._told is None else self._told.seconds)
        passed = now.seconds - since[1]
        if step <= self._told_step or (passed < STEP_INTERVAL_S and not last):
            return False
        if passed < STEP_INTERVAL_S and self._before is not None:
            # Workers report many steps at once: over a moment these are no rate, so the last one counts from earlier.
            passed = now.seconds - self._before[1]
            samples = self._plan.samples_until(step) - self._plan.samples_until(self._before[0])
        else:
            samples = self._plan.samples_until(step) - self._plan.samples_until(self._told_step)
        self._before = since
        self._told_step, self._told = step, now
        steps, begun = self._plan.steps, self._plan.epochs_begun(step)
        self.set(progress=Progress(step=step, steps=steps, epoch=begun), traffic=traffic())
        rate = samples / passed if passed > 0 else 0.0
        self.append(StepDone(step=step, steps=steps, epoch=begun, samples_per_second=rate), now)
        return True

    def drain(self) -> list[Instruction]:
        """What is to be carried out since the last call."""
        out, self._entries = self._entries, []
        if self._is_changed:
            out.append(Save(self.job))
            self._is_changed = False
        return out
