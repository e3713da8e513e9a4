"""Merging: the most urgent unit first, then the pulls that waited for it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Final, Generic, TypeVar

import numpy as np

from weft_kvstore.pull_wait import PullWait
from weft_kvstore.unit_state import AnyUnit, RuleFailedError
from weft_kvstore.work_queue import WorkQueue

BATCH_UNITS: Final = 16
BATCH_BYTES: Final = 1 << 20
"""Units, or bytes of them, that may be merged before values leave for links that are busy anyway: fuller frames."""

J = TypeVar("J", bound=Hashable)


class Merger(Generic[J]):
    """Units of any number of jobs. `answer(wait, unit)` is called for a pull that the unit can answer now, `fail(job,
    reason)` for a job that cannot go on: its rule has failed, or there is no memory for its sums."""

    def __init__(
        self, answer: Callable[[PullWait, AnyUnit], None], fail: Callable[[J, str], None], *, priorities: bool
    ) -> None:
        self._answer = answer
        self._fail = fail
        self._queue: WorkQueue[J] = WorkQueue(priorities=priorities)
        self._batch_units = 0
        self._batch_bytes = 0

    def __len__(self) -> int:
        """How many units have something to merge."""
        return len(self._queue)

    def __bool__(self) -> bool:
        return bool(self._queue)

    @property
    def batch_is_full(self) -> bool:
        """Whether enough was merged since `begin_batch` to fill a frame."""
        return self._batch_units >= BATCH_UNITS or self._batch_bytes >= BATCH_BYTES

    def begin_batch(self) -> None:
        self._batch_units = self._batch_bytes = 0

    def put(self, job: J, units: Iterable[AnyUnit]) -> None:
        """These may have something to merge."""
        for one in units:
            self._queue.put(job, one)

    def changed(self, job: J, units: Iterable[AnyUnit]) -> None:
        """Values were set: pulls, or a merge, may have waited for them."""
        for one in units:
            self._queue.put(job, one)
            self._answer_waiting(one)

    def drop(self, job: J) -> None:
        """Forgets a job's work."""
        self._queue.drop(job)

    def work_once(self) -> bool:
        """Merges the most urgent unit. True if there was one. A rule that fails ends its job, not the process."""
        found = self._queue.pop()
        if found is None:
            return False
        job, one = found
        self._batch_units += 1
        self._batch_bytes += one.nbytes
        try:
            with np.errstate(all="ignore"):  # What overflows is the user's to see in the values.
                moved = one.merge()
        except RuleFailedError as error:
            self._fail(job, str(error))
        except MemoryError as error:
            self._fail(job, f"no memory to merge {one.at_step(one.version)}: {error}")
        else:
            if moved:
                self._answer_waiting(one)
        return True

    def _answer_waiting(self, one: AnyUnit) -> None:
        for wait in one.answerable():
            if not wait.dropped:  # An answer may lose the connection of those behind it.
                self._answer(wait, one)
