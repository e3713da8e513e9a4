"""Snapshots of one job: when the next is taken, what has come of it, which are kept. Pure.

Every process that holds values of the job writes its own file: the shards, or the worker where there are none. They are
told of a step before any of them is there, so that all capture the same one. The last snapshot is of the last step: the
shards are told once all workers are there, and a worker without shards writes it before it ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from weft.api.agent import Snapshot, SnapshotDone, SnapshotFile, SnapshotOrder, report_interval
from weft.api.event import LogLine
from weft.api.job import Mode, UpdateBy
from weft_server.control.clock import Moment
from weft_server.control.instructions import Instruction, KeepSnapshot, TidySnapshots
from weft_server.control.lease import Lease
from weft_server.control.leases import Places
from weft_server.control.memory import RunMemory
from weft_server.plan import JobPlan

KEPT = 2
"""Of a job that runs: the newest may turn out not to be readable."""
AHEAD_S = 1.0
"""How far ahead the step of a snapshot is, at the pace of the job: a report and an order pass meanwhile."""
AHEAD_STEPS = 2
MOST_FILES = 10
"""Of one process in a snapshot, until it writes all rows of its tables again."""
WAIT_S = 60.0
"""After the last worker has passed the step: how long a file may take, or an interval where that is longer."""


@dataclass
class _Ordered:
    """A snapshot that is being written: files by lease; of tables they may have what has changed since `base`.
    `passed`: when the last worker was seen beyond its step."""

    step: int
    folder: str
    base: Snapshot | None = None
    files: dict[str, SnapshotDone] = field(default_factory=dict)
    passed: float | None = None

    def snapshot(self) -> Snapshot:
        """All that it needs, once all files are there: of each process the earlier ones first."""
        done = sorted(self.files.values(), key=lambda one: one.file.name if one.file is not None else "")
        scaled = next((one for one in done if one.loss_scale is not None), done[0])
        files: list[SnapshotFile] = []
        for one in done:
            if one.file is None:
                continue
            if self.base is not None and one.since == self.base.step:
                own = self.base.folder.rpartition("/")[2]
                earlier = [file for file in self.base.files if file.name == one.file.name]
                files += [file.model_copy(update={"folder": file.folder or own}) for file in earlier]
            files.append(one.file)
        return Snapshot(
            step=self.step,
            folder=self.folder,
            files=files,
            loss_scale=scaled.loss_scale,
            finite_steps=scaled.finite_steps,
        )


class RunSnapshots:
    """The snapshots of one job, in folders below `location`; none where that is None."""

    def __init__(
        self, job: str, plan: JobPlan, places: Places, location: str | None, *, memory: RunMemory, now: Moment
    ) -> None:
        self.kept = list(memory.snapshots)
        """Whole ones, oldest first."""
        self.unreadable = list(memory.unreadable)
        """Those that a process could not read: their place may only have been away, so they stay until a newer one is
        there."""
        self._job = job
        self.plan = plan
        self._places = places
        self._location = None if location is None or unfit(plan) else f"{location}/{job}"
        self._ordered: _Ordered | None = None
        self._checked: Snapshot | None = None
        """Its files are being looked at, since `_asked`."""
        self._asked = 0.0
        self._asked_of: set[int] = set()
        """Steps that were ordered: none is ordered twice, for who has missed one passes it over."""
        self._ahead_s = AHEAD_S
        self._is_urgent = False
        self._needed: int | None = None
        self._last_files = dict(memory.last_files)
        """Of the snapshot of the last step, by lease."""
        self._trouble: str | None = None
        """Why the last one was not kept, where that was said."""
        self._out: list[Instruction] = []
        self._due = math.inf
        self._since = (0.0, 0)
        """When the job was at which step: its pace counts from there."""
        self._wait(now)

    @property
    def lacking(self) -> str | None:
        """Why the job has none; None where it may."""
        return unfit(self.plan) or ("the server keeps none" if self._location is None else None)

    @property
    def newest(self) -> Snapshot | None:
        """What the job goes on from."""
        return self.kept[-1] if self.kept else None

    @property
    def nbytes(self) -> int:
        """What those take that are the job's own."""
        own = [each for each in self.kept if each.folder.startswith(f"{self._location}/")]
        return sum(file.nbytes for each in own for file in each.files)

    def uses(self, place: str) -> bool:
        """Whether the job may have to go on from a snapshot below that place."""
        return any(each.folder.startswith(f"{place}/") for each in self.kept)

    @property
    def last_files(self) -> dict[str, SnapshotDone]:
        """What was written of the snapshot of the last step."""
        return dict(self._last_files)

    @property
    def is_under_way(self) -> bool:
        """Whether one is being written or looked at."""
        return self._ordered is not None or self._checked is not None

    @property
    def last_folder(self) -> str | None:
        """Where the snapshot of the last step is written to; None where there is one already, or is to be none."""
        newest, steps = self.newest, self.plan.steps
        if self._location is None or self.plan.snapshot_every_s is None or (newest and newest.step == steps):
            return None
        return f"{self._location}/{steps}-{self._places.term}"

    def last_folder_of(self, worker: Lease) -> str | None:
        """The same, for a worker that holds what goes with its process."""
        return self.last_folder if worker in self._holders else None

    def finish(self) -> None:
        """All workers have done their last step: what the job is then is kept, so that it can be trained longer."""
        folder = self.last_folder
        self._ordered = None  # It would be of an earlier step.
        ended = [lease for lease in self._holders if lease in self._places.workers]
        if folder is not None and all(lease.id in self._last_files for lease in ended):
            self._ordered = _Ordered(self.plan.steps, folder, self._base(), self._last_files)
            self._places.order(self._holders)
        self._tidy()

    def begin(self, now: Moment, *, wanted: bool = False) -> None:
        """The job runs: there is a place for its snapshots, and the interval begins. Somebody may have `wanted` one."""
        self._tidy()
        self._wait(now)
        if wanted:
            self.want(now)

    def tick(self, now: Moment) -> LogLine | None:
        """Orders a snapshot that is due, and has one looked at that is written. What to say, if anything."""
        ordered, interval = self._ordered, self.plan.snapshot_every_s or WAIT_S
        if self._location is None:
            return None
        if self._checked is not None:
            if now.seconds - self._asked < WAIT_S:
                return None
            return self._not_kept(self._checked.step, f"their place did not answer within {WAIT_S:g} s")
        if ordered is None:
            if now.seconds >= self._due:
                self._order(now, interval)
            return None
        if self._places.step < ordered.step:
            return None
        missing = [lease for lease in self._holders if lease.id not in ordered.files]
        if not missing:
            self._ordered, self._checked, self._asked = None, ordered.snapshot(), now.seconds
            self._out.append(KeepSnapshot(self._job, self._checked))
            return None
        if ordered.passed is None or any(lease.is_silent for lease in missing):  # It is waited for elsewhere.
            ordered.passed = now.seconds
        limit = max(WAIT_S, interval)
        who = ", ".join(lease.who for lease in missing)
        if not all(lease.is_held for lease in missing):
            return self._not_kept(ordered.step, f"{who} did not write it before the end")
        if now.seconds - ordered.passed < limit:
            return None
        return self._not_kept(ordered.step, f"{who} did not write it within {limit:g} s")

    def want(self, now: Moment) -> None:
        """One is to be taken as soon as may be, and not only where metrics are told."""
        self._due = now.seconds
        ordered, soon = self._ordered, AHEAD_STEPS + math.ceil(2 * AHEAD_S * self._pace(now))
        if ordered is not None and not self._is_urgent and ordered.step - self._furthest > soon:
            self.abandon()
        self._is_urgent = True

    def orders(self, lease: Lease) -> list[SnapshotOrder]:
        """What the agent of that lease is to write."""
        ordered = self._ordered
        if ordered is None or lease not in self._holders or lease.id in ordered.files or not lease.is_held:
            return []
        since = None if ordered.base is None else ordered.base.step
        return [SnapshotOrder(allocation=lease.id, step=ordered.step, folder=ordered.folder, since=since)]

    def take(self, lease: Lease, done: SnapshotDone, now: Moment) -> LogLine | None:
        """What became of a file. What to say, if anything."""
        ordered = self._ordered
        if done.file is not None and done.step == self.plan.steps and lease in self._holders:
            self._last_files[lease.id] = done
            return None
        if ordered is None or done.step != ordered.step:
            if done.step == self.plan.steps and done.error and done.step not in {each.step for each in self.kept}:
                return self._not_kept(done.step, f"{lease.who}: {done.error}")
            unreadable = next((each for each in self.kept if each.step == done.step and done.error), None)
            if unreadable is None:
                self._tidy()  # Of a snapshot that nobody waits for any more.
                return None
            self.kept.remove(unreadable)
            self.unreadable.append(unreadable)
            return _warning(f"the snapshot of step {done.step} cannot be used: {done.error}")
        if done.error is None and done.file is not None:
            ordered.files[lease.id] = done
            return None
        if not done.missed or done.step == self.plan.steps:
            return self._not_kept(done.step, f"{lease.who}: {done.error}")
        self.abandon()
        self._ahead_s = min(2 * self._ahead_s, self.plan.snapshot_every_s or WAIT_S)
        self._due = now.seconds + self._ahead_s  # Soon, with a step that is further ahead.
        return None

    def checked(self, step: int, error: str | None) -> LogLine | None:
        """A snapshot's files were looked at. What to say, if anything."""
        snapshot, self._checked = self._checked, None
        if snapshot is None or snapshot.step != step:
            return None
        if error is not None:
            return self._not_kept(step, error)
        whole = [*self.kept, snapshot]
        self.kept = [each for each in whole if each in whole[-KEPT:] or each == self.up_to(self._needed)]
        self._tidy()
        was_trouble, self._trouble = self._trouble, None
        self._is_urgent = False
        message = f"snapshots are kept again: that of step {step} is"
        return LogLine(level="info", source="server", message=message) if was_trouble else None

    def up_to(self, step: int | None) -> Snapshot | None:
        """The newest that is not after that step."""
        return next((each for each in reversed(self.kept) if step is not None and each.step <= step), None)

    def need(self, step: int | None) -> None:
        """The job may go on to that step later: what it would go on from is kept while newer ones come."""
        self._needed = step

    def drop_after(self, step: int) -> None:
        """The job goes no further than to that step."""
        self.abandon()
        self.kept = [each for each in self.kept if each.step <= step]
        self._tidy()

    def abandon(self) -> None:
        """Nobody waits any more for the one that is under way."""
        self._last_files = {}
        if self._ordered is not None or self._checked is not None:
            self._ordered = self._checked = None
            self._tidy()

    def end(self, *, keep: bool = True) -> None:
        """The job has ended. The last one is kept, for who goes on from it."""
        self._ordered = self._checked = None
        self.kept = self.kept[-1:] if keep else []
        self.unreadable = self.unreadable if keep else []
        if self.kept or self.unreadable:
            self._tidy()
        elif self._location is not None:
            self._out.append(TidySnapshots(self._job, None))

    @property
    def has_work(self) -> bool:
        """Whether there is something to be drained, or orders have changed."""
        return bool(self._out) or self._ordered is not None

    def drain(self) -> list[Instruction]:
        """What is to be done since the last call."""
        out, self._out = self._out, []
        return out

    @property
    def _holders(self) -> list[Lease]:
        """Who has values of the job. What workers update themselves all of them have alike: the first writes it. What
        compression owes each has for itself."""
        shards, workers, plan = self._places.shards, self._places.workers, self.plan
        if not shards or (plan.compression is not None and plan.compression.gradients is not None):
            return shards + workers
        return shards + [lease for lease in workers if plan.update is UpdateBy.WORKERS and lease.place == 0]

    @property
    def _furthest(self) -> int:
        """Steps that the fastest worker has finished."""
        return max(worker.step for worker in self._places.workers)

    def _pace(self, now: Moment) -> float:
        """Steps a second since the job was placed."""
        since, step = self._since
        return (self._furthest - step) / max(now.seconds - since, 0.1)

    def _wait(self, now: Moment) -> None:
        self._since = (now.seconds, self._places.step)
        self._due = now.seconds + (self.plan.snapshot_every_s or math.inf)

    def _order(self, now: Moment, interval: float) -> None:
        """Chooses a step that nobody has reached; at the end of a report's steps where that is not far, so that a job
        that goes on tells the same metrics."""
        furthest, pace = self._furthest, self._pace(now)
        at = furthest + AHEAD_STEPS + math.ceil(pace * self._ahead_s)
        every = report_interval(self.plan.steps)
        even = -(-at // every) * every
        at = even if even - at <= pace * (AHEAD_S if self._is_urgent else interval / 2) else at
        while at in self._asked_of:
            at += 1
        self._due = now.seconds + interval
        if at < self.plan.steps:
            self._asked_of.add(at)
            self._ordered = _Ordered(at, f"{self._location}/{at}-{self._places.term}", self._base())
            self._places.order(self._holders)

    def _base(self) -> Snapshot | None:
        """What the next snapshot may need of tables: the newest, if these processes wrote it, until its files are many,
        or have as many bytes as if all had been written twice."""
        newest = self.newest
        if newest is None or not newest.folder.endswith(f"-{self._places.term}"):
            return None
        for name in {file.name for file in newest.files}:
            sizes = [file.nbytes for file in newest.files if file.name == name]
            if len(sizes) >= MOST_FILES or sum(sizes) > 2 * max(sizes):
                return None
        return newest

    def _not_kept(self, step: int, why: str) -> LogLine | None:
        self.abandon()
        told, self._trouble = self._trouble, why
        if step == self.plan.steps:
            newest = "none" if self.newest is None else f"that of step {self.newest.step}"
            return _warning(f"no snapshot of the last step, {step}, was kept: {why}; the newest is {newest}")
        return None if told == why else _warning(f"no snapshot of step {step} was kept: {why}; it is tried again")

    def _tidy(self) -> None:
        if self._location is not None:
            newest = -1 if self.newest is None else self.newest.step
            self.unreadable = [each for each in self.unreadable if each.step > newest]
            ordered = self._ordered
            whole = [*self.unreadable, *self.kept, self._checked, None if ordered is None else ordered.base]
            using = [folder for each in whole if each is not None for folder in folders_of(each)]
            if ordered is not None:
                using.append(ordered.folder)
            self._out.append(TidySnapshots(self._job, tuple(dict.fromkeys(using))))


def folders_of(snapshot: Snapshot) -> list[str]:
    """The folders that it needs, its own first."""
    place = snapshot.folder.rpartition("/")[0]
    return [snapshot.folder, *dict.fromkeys(f"{place}/{file.folder}" for file in snapshot.files if file.folder)]


def no_snapshots(plan: JobPlan, location: str | None) -> str | None:
    """Why a job takes no snapshots by itself; None where it does."""
    off = "snapshot_every_s is null" if plan.snapshot_every_s is None else None
    return unfit(plan) or ("the server keeps none" if location is None else off)


def unfit(plan: JobPlan) -> str | None:
    """Why no snapshot of a job could be continued exactly; None where it can."""
    if plan.mode is not Mode.SYNC:
        return f"its mode is {plan.mode.value}"
    return None


def _warning(message: str) -> LogLine:
    return LogLine(level="warning", source="server", message=message)
