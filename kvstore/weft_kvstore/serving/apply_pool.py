"""Threads that help the shard's own with updates: what can be cut is computed side by side."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from weft_kvstore.merging.waiting import Task
from weft_kvstore.statistics import ApplyStatistics


@dataclass(slots=True)
class _Counts:
    name: str
    pieces: int = 0
    busy_s: float = 0.0


@dataclass(slots=True)
class _Batch:
    """Tasks of one call. `left` counts those that have not ended, `error` is the first that was raised."""

    tasks: deque[Task]
    left: int
    ended: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    error: BaseException | None = None


class ApplyPool:
    """`threads` beside the caller's own; with none, everything is computed by the caller. NumPy lets go of the
    interpreter while it computes, so pieces of an update do run at the same time."""

    def __init__(self, threads: int = 0) -> None:
        """Raises ValueError for a number below 0."""
        if threads < 0:
            raise ValueError(f"apply threads: at least 0, not {threads}")
        self.threads = threads
        self.lanes = threads + 1
        self._own = _Counts("socket")
        self._counts = [_Counts(f"apply-{number}") for number in range(threads)]
        self._batches: deque[_Batch] = deque()
        self._wanted = threading.Condition()
        self._closing = False
        self._started = [
            threading.Thread(target=self._help, args=(counts,), name=f"weft-{counts.name}", daemon=True)
            for counts in self._counts
        ]
        for thread in self._started:
            thread.start()

    def run(self, tasks: Sequence[Task]) -> None:
        """Carries out all of them, in any order, and returns when all have ended. Raises what the first one raised."""
        if not self.threads or len(tasks) < 2:
            begun = time.perf_counter()
            try:
                for task in tasks:
                    task()
            finally:
                self._own.pieces += len(tasks)
                self._own.busy_s += time.perf_counter() - begun
            return
        batch = _Batch(deque(tasks), len(tasks))
        with self._wanted:
            self._batches.append(batch)
            self._wanted.notify(min(self.threads, len(tasks) - 1))
        _carry_out(batch, self._own)
        batch.ended.wait()
        with self._wanted:
            if batch in self._batches:
                self._batches.remove(batch)
        if batch.error is not None:
            raise batch.error

    def statistics(self) -> Iterator[ApplyStatistics]:
        """Of the caller's thread and of each other one, at this moment."""
        for one in (self._own, *self._counts):
            yield ApplyStatistics(one.name, one.pieces, one.busy_s)

    def close(self) -> None:
        """Ends the threads. Idempotent."""
        with self._wanted:
            self._closing = True
            self._wanted.notify_all()
        for thread in self._started:
            thread.join()

    def _help(self, counts: _Counts) -> None:
        while True:
            with self._wanted:
                self._wanted.wait_for(lambda: self._closing or any(one.tasks for one in self._batches))
                if self._closing:
                    return
                batch = next(one for one in self._batches if one.tasks)
            _carry_out(batch, counts)


def _carry_out(batch: _Batch, counts: _Counts) -> None:
    while True:
        try:
            task = batch.tasks.popleft()
        except IndexError:
            return
        error: BaseException | None = None
        try:
            _count(counts, task)
        except BaseException as raised:  # noqa: BLE001  # a thread's outermost frame: it is raised where the caller waits
            error = raised
        with batch.lock:
            batch.error = batch.error or error
            batch.left -= 1
            if not batch.left:
                batch.ended.set()


def _count(counts: _Counts, task: Task) -> None:
    begun = time.perf_counter()
    try:
        with np.errstate(all="ignore"):  # It is the thread's own; what overflows is the user's to see in the values.
            task()
    finally:
        counts.pieces += 1
        counts.busy_s += time.perf_counter() - begun
