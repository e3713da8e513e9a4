"""Threads that help the shard's own with updates: what can be cut is computed side by side."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from weft_kvstore.bucket.waiting import Task
from weft_kvstore.statistics import ApplyStatistics


@dataclass(slots=True)
class _Counts:
    name: str
    pieces: int = 0
    busy_s: float = 0.0


class ApplyPool:
    """`threads` beside the caller's own; with none, everything is computed by the caller. NumPy lets go of the
    interpreter while it computes, so pieces of an update do run at the same time."""

    def __init__(self, threads: int = 0) -> None:
        """Raises ValueError for a number below 0."""
        if threads < 0:
            raise ValueError(f"apply threads: at least 0, not {threads}")
        self.lanes = threads + 1
        self._own, *others = self._counts = [_Counts("socket"), *(_Counts(f"apply-{n}") for n in range(threads))]
        self._here = threading.local()

        def begin() -> None:
            self._here.counts = others.pop()

        self._helpers = ThreadPoolExecutor(threads, "weft-apply", begin) if threads else None

    def run(self, tasks: Sequence[Task]) -> None:
        """Carries out all of them, in any order, and returns when all have ended. Raises what one of them raised; where
        nobody helps, the others are not begun then."""
        if self._helpers is None or len(tasks) == 1:
            started, counts = time.perf_counter(), self._own
            for number, task in enumerate(tasks, counts.pieces + 1):
                counts.pieces = number
                task()
            counts.busy_s += time.perf_counter() - started
            return
        left = deque(tasks)
        helping = [self._helpers.submit(self._help, left) for _ in range(min(self.lanes, len(tasks)) - 1)]
        try:
            self._carry_out(left, self._own)
        finally:
            begun = [one for one in helping if not one.cancel()]
            wait(begun)
        for one in begun:
            one.result()

    def statistics(self) -> Iterator[ApplyStatistics]:
        """Of the caller's thread and of each other one, at this moment."""
        for one in self._counts:
            yield ApplyStatistics(one.name, one.pieces, one.busy_s)

    def close(self) -> None:
        """Ends the threads. Idempotent."""
        if self._helpers is not None:
            self._helpers.shutdown()

    def _help(self, left: deque[Task]) -> None:
        with np.errstate(all="ignore"):  # It is the thread's own; what overflows is the user's to see in the values.
            self._carry_out(left, self._here.counts)

    def _carry_out(self, left: deque[Task], counts: _Counts) -> None:
        while left:
            try:
                task = left.popleft()
            except IndexError:  # Another thread has taken the last one.
                return
            begun = time.perf_counter()
            try:
                task()
            finally:
                counts.pieces += 1
                counts.busy_s += time.perf_counter() - begun
