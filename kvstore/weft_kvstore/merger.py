"""Merging and answering, the most urgent first and piece by piece. Pure.

No piece takes longer than some 50 ms, a rule's update of a whole key left out: between two of them the shard looks at
its socket, and whoever asks whether it lives is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Final, Generic, TypeVar

import numpy as np

from weft_kvstore.pull_wait import PullWait
from weft_kvstore.unit_state import AnyUnit, RuleFailedError
from weft_kvstore.work import PIECE_SLICES, Work
from weft_kvstore.work_queue import WorkQueue

BATCH_UNITS: Final = 16
BATCH_BYTES: Final = 1 << 20
"""Pieces, or bytes of them, that may be worked on before values leave for links that are busy anyway: fuller frames."""

J = TypeVar("J", bound=Hashable)


class Merger(Generic[J]):
    """Units of any number of jobs. `answer(wait, unit)` hands over the unit's answer to a pull, and stops after each
    piece of it; `fail(job, reason)` is called for a job that cannot go on: its rule has failed, or there is no memory.
    """

    def __init__(
        self,
        answer: Callable[[PullWait, AnyUnit], Iterator[None]],
        fail: Callable[[J, str], None],
        *,
        priorities: bool,
    ) -> None:
        self._answer = answer
        self._fail = fail
        self._queue: WorkQueue[J] = WorkQueue(priorities=priorities)
        self._running: tuple[J, Work] | None = None
        self._batch_units = 0
        self._batch_bytes = 0

    def __len__(self) -> int:
        """How many units have something to do."""
        return len(self._queue)

    def __bool__(self) -> bool:
        return bool(self._queue)

    @property
    def batch_is_full(self) -> bool:
        """Whether enough was worked on since `begin_batch` to fill a frame."""
        return self._batch_units >= BATCH_UNITS or self._batch_bytes >= BATCH_BYTES

    def begin_batch(self) -> None:
        self._batch_units = self._batch_bytes = 0

    def put(self, job: J, units: Iterable[AnyUnit]) -> None:
        """These may have something to merge."""
        for one in units:
            if not one.merge_is_due:
                one.merge_is_due = True
                self._add(job, one, self._merging(job, one))

    def changed(self, job: J, units: Iterable[AnyUnit]) -> None:
        """Values were set: pulls, or a merge, may have waited for them."""
        for one in units:
            self.put(job, [one])
            self._answer_waiting(job, one)

    def answer(self, job: J, wait: PullWait, units: Sequence[AnyUnit]) -> None:
        """Answers a pull, as far as the units can now; for the others it waits. One piece is answered at once."""
        for one in units:
            wait.open.add(one.index)
        if len(units) > PIECE_SLICES:
            self._add(job, units[0], self._asking(job, wait, units))
            return
        for one in units:
            self._answer_or_wait(job, wait, one)

    def drop(self, job: J) -> None:
        """Forgets a job's work."""
        self._queue.drop(job)
        if self._running is not None and self._running[0] == job:
            self._running[1].todo.clear()

    def work_once(self) -> bool:
        """The next piece of what is most urgent. True if there was one. A rule that fails ends its job, not the
        process."""
        found = self._queue.pop()
        if found is None:
            return False
        job, work = self._running = found
        self._batch_units += 1
        self._batch_bytes += work.piece_bytes
        try:
            with np.errstate(all="ignore"):  # What overflows is the user's to see in the values.
                work.step()
        finally:
            self._running = None
        if work.todo and not work.queued:
            self._queue.back(job, work)
        return True

    def _add(self, job: J, work: Work, task: Iterator[None]) -> None:
        work.todo.append(task)
        if self._running is None or self._running[1] is not work:  # it goes back by itself
            self._queue.put(job, work)

    def _merging(self, job: J, one: AnyUnit) -> Iterator[None]:
        one.merge_is_due = False
        try:
            while (yield from one.merging()):
                self._answer_waiting(job, one)
                if len(one.todo) > 1:  # Who waits behind must not wait for as long as gradients come.
                    self.put(job, [one])
                    return
        except RuleFailedError as error:
            self._fail(job, str(error))
        except MemoryError as error:
            self._fail(job, f"no memory to merge {one.at_step(one.version)}: {error}")

    def _asking(self, job: J, wait: PullWait, units: Sequence[AnyUnit]) -> Iterator[None]:
        for number, one in enumerate(units, 1):
            if wait.dropped:
                return
            self._answer_or_wait(job, wait, one)
            if not number % PIECE_SLICES:
                yield

    def _answering(self, job: J, wait: PullWait, one: AnyUnit) -> Iterator[None]:
        if wait.dropped:
            return
        try:
            yield from self._answer(wait, one)
        except MemoryError as error:
            self._fail(job, f"no memory to answer a pull of key {one.spec.key!r}: {error}")

    def _answer_or_wait(self, job: J, wait: PullWait, one: AnyUnit) -> None:
        if one.can_answer(wait):
            self._begin_answer(job, wait, one)
        else:
            one.wait_for(wait)

    def _begin_answer(self, job: J, wait: PullWait, one: AnyUnit) -> None:
        answering = self._answering(job, wait, one)
        if not one.is_one_piece(wait):
            self._add(job, one, answering)
            return
        for _ in answering:
            pass

    def _answer_waiting(self, job: J, one: AnyUnit) -> None:
        for wait in one.answerable():
            if not wait.dropped:  # An answer may lose the connection of those behind it.
                self._begin_answer(job, wait, one)
