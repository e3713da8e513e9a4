"""Snapshots of one job: when the next is taken, what has come of it, which are kept, where they are. Pure.

Every process that holds values of the job writes its own file: the shards, or the worker where there are none. They are
told of a step before any of them is there, so that all capture the same one. The last snapshot is of the last step: the
shards are told once all workers are there, and a worker without shards writes it before it ends.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from weft.api.agent import Snapshot, SnapshotDone, SnapshotFile, SnapshotOrder, report_interval
from weft.api.event import LogLine
from weft.api.job import UpdateBy
from weft_server.control.clock import Timestamp
from weft_server.control.instructions import Instruction, KeepSnapshot, TidySnapshots
from weft_server.control.leases import Lease, Leases
from weft_server.control.memory import RunState

KEPT = 2
"""Of a job that runs: the newest may turn out not to be readable."""
AHEAD_S = 1.0
"""How far ahead the step of a snapshot is, at the pace of the job: a report and an order pass meanwhile."""
AHEAD_STEPS = 2
MOST_FILES = 10
"""Of one process in a snapshot, until it writes all rows of its tables again."""
WAIT_S = 60.0
"""After the last worker has passed the step: how long a file may take, or an interval where that is longer."""


# --- Where they are ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobFolder:
    """Where the snapshots of one job are, below the server's `location`: in folders `STEP-TERM`."""

    location: str
    job: str

    @property
    def path(self) -> str:
        return f"{self.location}/{self.job}"

    def of(self, step: int, term: int) -> str:
        """The folder of a snapshot that the job's processes of that term write."""
        return f"{self.path}/{step}-{term}"

    def has(self, snapshot: Snapshot) -> bool:
        """Whether it is one of this job's own; a resumed job begins with another's."""
        return snapshot.folder.startswith(f"{self.path}/")


def name_of(folder: str) -> str:
    """`STEP-TERM`, of the path or URL of a snapshot's folder."""
    return folder.rstrip("/").rpartition("/")[2]


def job_of(snapshot: Snapshot) -> str:
    """The job that wrote it."""
    return snapshot.folder.rstrip("/").split("/")[-2]


def step_and_term(folder: str) -> tuple[int, int] | None:
    """What the name of a snapshot's folder says; None for another name."""
    found = re.fullmatch(r"([0-9]+)-([0-9]+)", name_of(folder))
    return None if found is None else (int(found[1]), int(found[2]))


def beside(folder: str, name: str) -> str:
    """The folder of that name beside a snapshot's own; its own for ''."""
    return f"{folder.rstrip('/').rpartition('/')[0]}/{name}" if name else folder


def folders_of(snapshot: Snapshot) -> list[str]:
    """The folders that it needs, its own first."""
    return list(dict.fromkeys([snapshot.folder, *(beside(snapshot.folder, file.folder) for file in snapshot.files)]))


# --- One at a time ----------------------------------------------------------------------------------------------------


@dataclass
class _Capture:
    """A snapshot under way: the job's processes write it, then the server looks at it."""

    step: int
    folder: str
    base: Snapshot | None = None
    """Of tables its files may have only what has changed since this one."""
    files: dict[str, SnapshotDone] = field(default_factory=dict)
    """By lease."""
    passed: float | None = None
    """When the last worker was seen beyond its step."""
    whole: Snapshot | None = None
    """Once all files are there: the server looks at them."""
    asked: float = 0.0
    """Since when it does."""

    def put_together(self, now: Timestamp) -> Snapshot:
        """All that it needs, once all files are there: of each process the earlier ones first."""
        done = sorted(self.files.values(), key=lambda one: one.file.name if one.file is not None else "")
        scaled = next((one for one in done if one.loss_scale is not None), done[0])
        files: list[SnapshotFile] = []
        for one in done:
            if one.file is None:
                continue
            if self.base is not None and one.since == self.base.step:
                own = name_of(self.base.folder)
                earlier = [file for file in self.base.files if file.name == one.file.name]
                files += [file.model_copy(update={"folder": file.folder or own}) for file in earlier]
            files.append(one.file)
        self.asked = now.seconds
        self.whole = Snapshot(
            step=self.step,
            folder=self.folder,
            files=files,
            loss_scale=scaled.loss_scale,
            finite_steps=scaled.finite_steps,
        )
        return self.whole


class RunSnapshots:
    """The snapshots of one job: at most one is under way. None are taken where the server keeps none, at no `location`.

    `needed()` is a step that the job may go back to: what it would go on from then is kept while newer ones come.
    """

    def __init__(
        self,
        state: RunState,
        leases: Leases,
        location: str | None,
        now: Timestamp,
        needed: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._state = state
        self._memory = state.memory
        self._leases = leases
        self._location = location
        self._needed = needed
        self._folder = None if self.lacking or location is None else JobFolder(location, state.job)
        self._capture: _Capture | None = None
        self._last_is_due = False
        """Whether the snapshot of the last step is to be taken once the one under way is done with."""
        self._asked_of: set[int] = set()
        """Steps that were ordered: none is ordered twice, for who has missed one passes it over."""
        self._ahead_s = AHEAD_S
        self._is_urgent = False
        self._trouble: str | None = None
        """Why the last one was not kept, where that was said."""
        self._out: list[Instruction] = []
        self._due = math.inf
        self._since = (0.0, 0)
        """When the job was at which step: its pace counts from there."""
        self._wait(now)

    @property
    def lacking(self) -> str | None:
        """Why the job has none, not even one that is asked for; None where it may."""
        return self._state.plan.no_snapshots(self._location, asked_for=True)

    @property
    def newest(self) -> Snapshot | None:
        """What the job goes on from."""
        return self._memory.newest

    @property
    def nbytes(self) -> int:
        """What those take that are the job's own."""
        own = [each for each in self._memory.snapshots if self._folder is not None and self._folder.has(each)]
        return sum(file.nbytes for each in own for file in each.files)

    @property
    def is_under_way(self) -> bool:
        """Whether one is being written or looked at."""
        return self._capture is not None

    @property
    def last_folder(self) -> str | None:
        """Where the snapshot of the last step is written to; None where there is one already, or is to be none."""
        plan, newest = self._state.plan, self.newest
        if self._folder is None or plan.snapshot_every_s is None or (newest and newest.step == plan.steps):
            return None
        return self._folder_of(plan.steps)

    def last_folder_of(self, worker: Lease) -> str | None:
        """The same, for a worker that holds what goes with its process."""
        return self.last_folder if worker in self._holders else None

    def begin(self, now: Timestamp, *, wanted: bool = False) -> None:
        """The job runs: there is a place for its snapshots, and the interval begins. Somebody may have `wanted` one."""
        self._tidy()
        self._wait(now)
        if wanted:
            self.want(now)

    def finish(self) -> None:
        """All workers have done their last step: what the job is then is kept, so that it can be trained longer."""
        if self._written is not None:  # It would be of an earlier step.
            self._capture = None
        self._last_is_due = True
        self._take_last()
        self._tidy()

    def tick(self, now: Timestamp) -> LogLine | None:
        """Orders a snapshot that is due, and has one looked at that is written. What to say, if anything."""
        capture, interval = self._capture, self._state.plan.snapshot_every_s or WAIT_S
        if self._folder is None:
            return None
        if capture is None:
            if now.seconds >= self._due:
                self._order(now, interval)
            return None
        if capture.whole is not None:
            is_late = now.seconds - capture.asked >= WAIT_S
            return self._not_kept(capture.step, f"their place did not answer within {WAIT_S:g} s") if is_late else None
        if self._leases.step < capture.step:
            return None
        missing = [lease for lease in self._holders if lease.id not in capture.files]
        if not missing:
            self._out.append(KeepSnapshot(self._state.job, capture.put_together(now)))
            return None
        if capture.passed is None or any(lease.is_silent for lease in missing):  # It is waited for elsewhere.
            capture.passed = now.seconds
        limit = max(WAIT_S, interval)
        who = ", ".join(lease.who for lease in missing)
        if not all(lease.is_held for lease in missing):
            return self._not_kept(capture.step, f"{who} did not write it before the end")
        if now.seconds - capture.passed < limit:
            return None
        return self._not_kept(capture.step, f"{who} did not write it within {limit:g} s")

    def want(self, now: Timestamp) -> None:
        """One is to be taken as soon as may be, and not only where metrics are told."""
        self._due = now.seconds
        capture, soon = self._written, AHEAD_STEPS + math.ceil(2 * AHEAD_S * self._pace(now))
        if capture is not None and not self._is_urgent and capture.step - self._furthest > soon:
            self._drop()
        self._is_urgent = True

    def orders(self, lease: Lease) -> list[SnapshotOrder]:
        """What the agent of that lease is to write."""
        capture = self._written
        if capture is None or lease not in self._holders or lease.id in capture.files or not lease.is_held:
            return []
        since = None if capture.base is None else capture.base.step
        return [SnapshotOrder(allocation=lease.id, step=capture.step, folder=capture.folder, since=since)]

    def take(self, lease: Lease, done: SnapshotDone, now: Timestamp) -> LogLine | None:
        """What became of a file. What to say, if anything."""
        capture, memory = self._written, self._memory
        is_last, is_captured = done.step == self._state.plan.steps, capture is not None and capture.step == done.step
        is_early = is_last and done.file is not None and lease in self._holders
        if is_early:  # It may come before the others are told.
            memory.last_files = {**memory.last_files, lease.id: done}
        if capture is not None and is_captured and done.file is not None and (is_early or done.error is None):
            capture.files[lease.id] = done
            return None
        if is_early:
            return None
        if is_captured and done.missed and not is_last:
            self._drop()
            self._ahead_s = min(2 * self._ahead_s, self._state.plan.snapshot_every_s or WAIT_S)
            self._due = now.seconds + self._ahead_s  # Soon, with a step that is further ahead.
            return None
        kept = next((each for each in memory.snapshots if each.step == done.step), None)
        if is_captured or (is_last and done.error and kept is None):
            return self._not_kept(done.step, f"{lease.who}: {done.error}")
        if kept is None or not done.error:
            self._tidy()  # Of a snapshot that nobody waits for any more.
            return None
        memory.snapshots = [each for each in memory.snapshots if each is not kept]
        memory.unreadable = [*memory.unreadable, kept]
        return _warning(f"the snapshot of step {done.step} cannot be used: {done.error}")

    def checked(self, step: int, error: str | None) -> LogLine | None:
        """A snapshot's files were looked at. What to say, if anything."""
        capture, memory = self._capture, self._memory
        if capture is None or capture.whole is None or capture.step != step:
            return None
        if error is not None:
            return self._not_kept(step, error)
        known, needed = [*memory.snapshots, capture.whole], memory.up_to(self._needed())
        memory.snapshots = [each for each in known if each in known[-KEPT:] or each == needed]
        self._drop()
        was_trouble, self._trouble = self._trouble, None
        self._is_urgent = False
        message = f"snapshots are kept again: that of step {step} is"
        return LogLine(level="info", source="server", message=message) if was_trouble else None

    def drop_after(self, step: int) -> None:
        """The job goes no further than to that step."""
        self._memory.snapshots = [each for each in self._memory.snapshots if each.step <= step]
        self.abandon()
        self._tidy()

    def abandon(self) -> None:
        """The job's processes end: nobody waits for what they were writing."""
        self._memory.last_files, self._last_is_due = {}, False
        self._asked_of.clear()
        self._drop()

    def end(self, *, keep: bool = True) -> None:
        """The job has ended. The last one is kept, for who goes on from it."""
        memory, self._capture = self._memory, None
        memory.snapshots = memory.snapshots[-1:] if keep else []
        memory.unreadable = memory.unreadable if keep else []
        if memory.snapshots or memory.unreadable:
            self._tidy(ended=True)
        elif self._folder is not None:
            self._out.append(TidySnapshots(self._state.job, None))

    @property
    def has_work(self) -> bool:
        """Whether there is something to be drained, or orders have changed."""
        return bool(self._out) or self._written is not None

    def drain(self) -> list[Instruction]:
        """What is to be done since the last call."""
        out, self._out = self._out, []
        return out

    @property
    def _written(self) -> _Capture | None:
        """The one that is being written."""
        return self._capture if self._capture is not None and self._capture.whole is None else None

    @property
    def _holders(self) -> list[Lease]:
        """Who has values of the job. What workers update themselves all of them have alike: the first writes it. What
        compression owes each has for itself."""
        shards, workers, plan = self._leases.shards, self._leases.workers, self._state.plan
        if not shards or (plan.compression is not None and plan.compression.gradients is not None):
            return shards + workers
        return shards + [lease for lease in workers if plan.update is UpdateBy.WORKERS and lease.place == 0]

    def _folder_of(self, step: int) -> str:
        """Where the job's processes of now write a snapshot to."""
        assert self._folder is not None
        return self._folder.of(step, self._memory.term)

    @property
    def _furthest(self) -> int:
        """Steps that the fastest worker has finished."""
        return max(worker.step for worker in self._leases.workers)

    def _pace(self, now: Timestamp) -> float:
        """Steps a second since the job was placed."""
        since, step = self._since
        return (self._furthest - step) / max(now.seconds - since, 0.1)

    def _wait(self, now: Timestamp) -> None:
        self._since = (now.seconds, self._leases.step)
        self._due = now.seconds + (self._state.plan.snapshot_every_s or math.inf)

    def _order(self, now: Timestamp, interval: float) -> None:
        """Chooses a step that nobody has reached; at the end of a report's steps where that is not far, so that a job
        that goes on tells the same metrics."""
        steps, furthest, pace = self._state.plan.steps, self._furthest, self._pace(now)
        at = furthest + AHEAD_STEPS + math.ceil(pace * self._ahead_s)
        every = report_interval(steps)
        even = -(-at // every) * every
        at = even if even - at <= pace * (AHEAD_S if self._is_urgent else interval / 2) else at
        while at in self._asked_of:
            at += 1
        self._due = now.seconds + interval
        if at < steps:
            self._asked_of.add(at)
            self._begin_capture(_Capture(at, self._folder_of(at), self._base()))

    def _take_last(self) -> None:
        """Has the last step captured, where that is due; not before an earlier one was looked at."""
        if not self._last_is_due or self._capture is not None:
            return
        self._last_is_due = False
        folder, files = self.last_folder, self._memory.last_files
        ended = [lease for lease in self._holders if lease in self._leases.workers]
        if folder is not None and all(lease.id in files for lease in ended):
            self._begin_capture(_Capture(self._state.plan.steps, folder, self._base(), dict(files)))

    def _begin_capture(self, capture: _Capture) -> None:
        self._capture = capture
        self._leases.order(self._holders)

    def _base(self) -> Snapshot | None:
        """What the next snapshot may need of tables: the newest, if these processes wrote it, until its files are many,
        or have as many bytes as if all had been written twice."""
        newest = self.newest
        if newest is None or newest.folder != self._folder_of(newest.step):
            return None
        for name in {file.name for file in newest.files}:
            sizes = [file.nbytes for file in newest.files if file.name == name]
            if len(sizes) >= MOST_FILES or sum(sizes) > 2 * max(sizes):
                return None
        return newest

    def _drop(self) -> None:
        """The one under way is done with, or nobody waits for it any more."""
        if self._capture is not None:
            self._capture = None
            self._take_last()
            self._tidy()

    def _not_kept(self, step: int, why: str) -> LogLine | None:
        is_last = step == self._state.plan.steps
        if is_last:
            self._memory.last_files = {}
        self._drop()
        told, self._trouble = self._trouble, why
        if told is None and self._is_urgent:  # What is wrong may be mended by now: its place is made again.
            self._due = -math.inf
        if is_last:
            newest = "none" if self.newest is None else f"that of step {self.newest.step}"
            return _warning(f"no snapshot of the last step, {step}, was kept: {why}; the newest is {newest}")
        return None if told == why else _warning(f"no snapshot of step {step} was kept: {why}; it is tried again")

    def _tidy(self, *, ended: bool = False) -> None:
        """Has every folder deleted that is not needed any more; of a job that has not `ended`, none that it may write
        from now on."""
        if self._folder is None:
            return
        memory, capture = self._memory, self._capture
        newest = -1 if self.newest is None else self.newest.step
        memory.unreadable = [each for each in memory.unreadable if each.step > newest]
        whole = [*memory.unreadable, *memory.snapshots, *([] if capture is None else [capture.base, capture.whole])]
        using = [folder for each in whole if each is not None for folder in folders_of(each)]
        if capture is not None:
            using.append(capture.folder)
        # The last step may be written before it is ordered, also where the job ends sooner than was thought.
        ordered = min(max([newest, *self._asked_of]), self._state.plan.steps - 1)
        since = None if ended else (memory.term, ordered)
        self._out.append(TidySnapshots(self._state.job, tuple(dict.fromkeys(using)), since))


def _warning(message: str) -> LogLine:
    return LogLine(level="warning", source="server", message=message)
