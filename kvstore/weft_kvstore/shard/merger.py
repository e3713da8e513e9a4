"""Merging and answering, the most urgent first and piece by piece. Pure.

No piece takes longer than some 50 ms, a rule's update of a whole key left out: between two of them the shard looks at
its socket, and whoever asks whether it lives is answered.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Final, Generic, Literal, TypeVar

import numpy as np

from weft_kvstore.lot.part import PlainLot
from weft_kvstore.lot.state import Arrival, Changed
from weft_kvstore.lot.update import RuleFailedError
from weft_kvstore.merging.pull_wait import PullWait
from weft_kvstore.merging.work import Work
from weft_kvstore.shard.answering import Answering
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.lot_work import LotWork
from weft_kvstore.shard.taken import Taken
from weft_kvstore.shard.work_queue import WorkQueue
from weft_kvstore.units.unit_state import AnyUnit

BATCH_UNITS: Final = 16
BATCH_BYTES: Final = 1 << 20
"""Pieces, or bytes of them, that may be worked on before values leave for links that are busy anyway: fuller frames."""

J = TypeVar("J", bound=Hashable)
WorkStage = Literal["merge", "answer", "decode"]


class Merger(Generic[J]):
    """Units and lots of any number of jobs."""

    def __init__(self, hands: Answering[J], *, priorities: bool) -> None:
        self._hands = hands
        self._queue: WorkQueue[J] = WorkQueue(priorities=priorities)
        self._running: tuple[J, Work] | None = None
        self._last: tuple[J, int] | None = None
        self._batch_units = 0
        self._batch_bytes = 0
        self.stage: WorkStage = "merge"
        """What the last piece was."""

    def __len__(self) -> int:
        """How many pieces of work wait, at least."""
        return len(self._queue)

    def __bool__(self) -> bool:
        return bool(self._queue)

    @property
    def batch_is_full(self) -> bool:
        """Whether enough was worked on since `begin_batch` to fill a frame."""
        return self._batch_units >= BATCH_UNITS or self._batch_bytes >= BATCH_BYTES

    def begin_batch(self) -> None:
        self._batch_units = self._batch_bytes = 0

    def put(self, job: J, work: Work) -> None:
        """Something else that is to be done for a job."""
        self._queue.put(job, work)

    def took(self, seconds: float) -> None:
        """How long the last piece has taken, which counts in its job's turn."""
        if self._last is not None:
            self._queue.took(*self._last, seconds)

    def worked(self, job: J) -> int:
        """What a job's pieces have counted for."""
        return self._queue.worked.get(job, 0)

    def waiting(self) -> list[tuple[int, int]]:
        """Priority and bytes of the pieces that wait; may be called on any thread."""
        return self._queue.waiting()

    def take(self, job: J, taken: Taken) -> None:
        """Goes on with what follows from something that came."""
        if taken.pull is not None:
            self._answer_units(job, taken.pull, taken.units)
            return
        self._put(job, taken.units)
        for lot, arrival in taken.arrivals:
            self._add_arrival(job, lot, arrival)
        if taken.changed:
            for one in taken.units:
                self._answer_waiting(job, one)
            for lot, (first, stop) in taken.ranges:
                self._answer_range(lot, first, stop)
                self._add_lot(job, lot, first, stop, lot.state.advancing(first, stop))

    def go_on(self, job: J, shard: JobShard) -> None:
        """A step was committed: what holds it goes on."""
        self._put(job, [one for one in shard.units if one.spec.slots])
        for lot in shard.lots.values():
            if lot.state.spec.slots:
                self._add_lot(job, lot, 0, len(lot.state), lot.state.advancing(0, len(lot.state)))

    def ask(self, job: J, wait: PullWait, units: Sequence[AnyUnit], shard: JobShard) -> None:
        """Answers a pull, as far as it can be now; for the rest it waits."""
        for number, ranges in list(wait.open.items()):
            lot = shard.lots[number]
            for first, stop in list(ranges):
                self._answer_or_refuse(lot, wait, first, stop)
                if wait.dropped:
                    return
            if number in wait.open:
                lot.pulls.wait_for(wait)
        self._answer_units(job, wait, units)

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
            self._last = None
            return False
        job, work = self._running = found
        nbytes = work.piece_bytes
        self._last, self.stage = (job, nbytes), "decode" if work.hands_over else "merge"
        self._batch_units += 1
        self._batch_bytes += nbytes
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

    def _add_arrival(self, job: J, lot: PlainLot, arrival: Arrival) -> None:
        laid = arrival.laid
        self._add_lot(job, lot, laid.first, laid.stop, lot.state.merging(arrival))

    def _add_lot(self, job: J, lot: PlainLot, first: int, stop: int, changes: Changed) -> None:
        bounds = lot.state.spec.part.bounds
        work = LotWork(lot.state.priority(first), int(bounds[stop] - bounds[first]))
        self._add(job, work, self._changing(job, lot, changes))

    def _changing(self, job: J, lot: PlainLot, changes: Changed) -> Iterator[None]:
        try:
            for first, stop, goes_on in changes:
                self._answer_range(lot, first, stop)
                if goes_on:
                    yield
        except RuleFailedError as error:
            self._hands.fail(job, str(error))
        except MemoryError as error:
            self._hands.fail(job, f"no memory to merge lot {lot.state.spec.number}: {error}")

    def _answer_range(self, lot: PlainLot, first: int, stop: int) -> None:
        waiting = lot.pulls.waiting(first, stop)
        for wait in waiting:
            if not wait.dropped:  # An answer may lose the connection of those behind it.
                self._answer_or_refuse(lot, wait, first, stop)
        lot.pulls.tidy(waiting)

    def _answer_or_refuse(self, lot: PlainLot, wait: PullWait, first: int, stop: int) -> None:
        for low, high in lot.pulls.ready(wait, first, stop):
            self._hands.answer_range(wait, lot, low, high)
            if wait.dropped:
                return
        passed = lot.pulls.passed(wait, first, stop)
        if passed is not None:
            self._hands.refuse(wait, passed)

    def _put(self, job: J, units: Iterable[AnyUnit]) -> None:
        """These may have something to merge."""
        for one in units:
            if not one.merge_is_due:
                one.merge_is_due = True
                self._add(job, one, self._merging(job, one))

    def _answer_units(self, job: J, wait: PullWait, units: Sequence[AnyUnit]) -> None:
        for one in units:
            wait.open_units.add(one.spec.lot)
        for one in units:
            if not wait.dropped:
                self._answer_or_wait(job, wait, one)

    def _merging(self, job: J, one: AnyUnit) -> Iterator[None]:
        one.merge_is_due = False
        try:
            while (yield from one.merging()):
                self._answer_waiting(job, one)
                if len(one.todo) > 1:  # Who waits behind must not wait for as long as gradients come.
                    self._put(job, [one])
                    return
        except RuleFailedError as error:
            self._hands.fail(job, str(error))
        except MemoryError as error:
            self._hands.fail(job, f"no memory to merge {one.at_step(one.version)}: {error}")

    def _answering(self, job: J, wait: PullWait, one: AnyUnit) -> Iterator[None]:
        if wait.dropped:
            return
        self.stage = "answer"
        try:
            yield from self._hands.answer(wait, one)
        except RuleFailedError as error:  # Rows that are read are brought up to date by it.
            self._hands.fail(job, str(error))
        except MemoryError as error:
            self._hands.fail(job, f"no memory to answer a pull of key {one.spec.key!r}: {error}")

    def _answer_or_wait(self, job: J, wait: PullWait, one: AnyUnit) -> None:
        passed = one.passed(wait)
        if passed is not None:
            self._hands.refuse(wait, passed)
        elif one.can_answer(wait):
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
