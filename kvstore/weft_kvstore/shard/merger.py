"""Merging and answering, the most urgent first and piece by piece, the jobs in turn. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Final, Generic, Literal, Protocol, TypeVar

import numpy as np

from weft_kvstore.bucket.part import PlainBucket
from weft_kvstore.bucket.state import Changed
from weft_kvstore.bucket.update import RuleFailedError
from weft_kvstore.merging.pulls import PullWait
from weft_kvstore.merging.work import PIECE_BYTES, Work
from weft_kvstore.shard.account import FairQueue
from weft_kvstore.shard.job_shard import JobShard, Taken
from weft_kvstore.tables.steps import AnyTable
from weft_kvstore.wire.messages import Reading

# --- Who hands over what a merger has merged: the connections of a shard, or the callers of a local store -------------


J_contra = TypeVar("J_contra", bound=Hashable, contravariant=True)


class Answering(Protocol[J_contra]):
    """What becomes of pulls, and of a job that fails."""

    def answer(self, wait: PullWait, unit: AnyTable) -> Iterator[None]:
        """A unit's answer to a pull; stops after each piece of it."""

    def answer_range(self, wait: PullWait, bucket: PlainBucket, first: int, stop: int) -> None:
        """What slices of a bucket, which are ready, answer to a pull."""

    def refuse(self, wait: PullWait, reason: str) -> None:
        """A pull that can never be answered."""

    def fail(self, job: J_contra, reason: str) -> None:
        """A job that cannot go on: its rule has failed, or there is no memory."""


# --- What there is to do for a range of a bucket ----------------------------------------------------------------------


class BucketWork(Work):
    """Something to do for a bucket: it counts in a job's turn what it works on."""

    __slots__ = ("_bytes",)

    def __init__(self, priority: int, nbytes: int) -> None:
        super().__init__(priority)
        self._bytes = min(nbytes, PIECE_BYTES)

    @property
    def piece_bytes(self) -> int:
        return self._bytes


# --- Work that waits: the most urgent first within a job, jobs in turn by bytes ---------------------------------------
# What hands a job's messages over takes turns with the rest of its work, so that what is urgent is seen in time and a
# flood of messages does not keep a job from merging.


LEAST_BYTES: Final = 1 << 17
"""What any piece counts for: as many bytes are merged in the time that the smallest one takes."""

BYTES_PER_S: Final = 1 << 30
"""What takes longer than its bytes do at this rate, as rules of many nodes do, counts by its time."""

J = TypeVar("J", bound=Hashable)


class _Lane:
    """A job's work: `letters` is what hands its messages over, where some wait; `heap` has the rest."""

    __slots__ = ("had_letters", "heap", "letters")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Work]] = []
        self.letters: Work | None = None
        self.had_letters = False

    def pop(self) -> Work:
        letters = self.letters
        if letters is not None and not (self.had_letters and self.heap):
            self.letters, self.had_letters = None, True
            return letters
        self.had_letters = False
        return heapq.heappop(self.heap)[2]

    @property
    def is_empty(self) -> bool:
        return not self.heap and self.letters is None


class WorkQueue(Generic[J]):
    """A job is in `_lanes` exactly while it has work. A work is in it once: `Work.queued`."""

    def __init__(self, *, priorities: bool = True) -> None:
        self._priorities = priorities
        self._seq = 0
        self._lanes: dict[J, _Lane] = {}
        self._turns: FairQueue[J] = FairQueue()
        self.worked: dict[J, int] = {}
        """What each job's pieces have counted for, as long as it is there."""

    def __len__(self) -> int:
        return sum(len(lane.heap) for lane in list(self._lanes.values()))

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def waiting(self) -> list[tuple[int, int]]:
        """Priority and bytes of the pieces that wait; may be called on any thread."""
        return [
            (priority, one.piece_bytes) for lane in list(self._lanes.values()) for priority, _, one in list(lane.heap)
        ]

    def put(self, job: J, one: Work) -> None:
        """Work that has something to do. In here already, it keeps its place."""
        if one.queued:
            return
        self._seq += 1
        one.turn = self._seq
        self.back(job, one)

    def back(self, job: J, one: Work) -> None:
        """Work that was popped and is not done: it has its place again, before equals that came later."""
        one.queued = True
        lane = self._lanes.get(job)
        if lane is None:
            lane = self._lanes[job] = _Lane()
            self._turns.come(job)
        if one.hands_over:
            lane.letters = one
        else:
            heapq.heappush(lane.heap, (one.priority if self._priorities else 0, one.turn, one))

    def pop(self) -> tuple[J, Work] | None:
        """The work to go on with; None where there is none."""
        if not self._lanes:
            return None
        job = self._turns.first(self._lanes) if len(self._lanes) > 1 else next(iter(self._lanes))
        lane = self._lanes[job]
        one = lane.pop()
        one.queued = False
        self._use(job, max(one.piece_bytes, LEAST_BYTES))
        if lane.is_empty:
            del self._lanes[job]
        return job, one

    def took(self, job: J, one_bytes: int, seconds: float) -> None:
        """How long a piece has taken that was popped; its job may be gone since."""
        more = int(seconds * BYTES_PER_S) - max(one_bytes, LEAST_BYTES)
        if more > 0 and job in self.worked:
            self._use(job, more)

    def _use(self, job: J, nbytes: int) -> None:
        self._turns.use(job, nbytes)
        self.worked[job] = self.worked.get(job, 0) + nbytes

    def drop(self, job: J) -> None:
        """Forgets a job and its work."""
        lane = self._lanes.pop(job, None)
        self._turns.drop(job)
        self.worked.pop(job, None)
        if lane is not None:
            for one in [*(one for _, _, one in lane.heap), *([lane.letters] if lane.letters is not None else [])]:
                one.queued = False
                one.todo.clear()


# --- Merging and answering, the most urgent first and piece by piece --------------------------------------------------
# No piece takes longer than some 50 ms, a rule's update of a whole key left out: between two of them the shard looks at
# its socket, and whoever asks whether it lives is answered.


BATCH_UNITS: Final = 16
BATCH_BYTES: Final = 1 << 20
"""Pieces, or bytes of them, that may be worked on before values leave for links that are busy anyway: fuller frames."""

WorkStage = Literal["merge", "answer", "decode"]


class Merger(Generic[J]):
    """Units and buckets of any number of jobs."""

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
        if taken.units:
            self._put(job, taken.units)
        for bucket, arrival in taken.arrivals:
            laid = arrival.laid
            self._add_bucket(job, bucket, laid.first, laid.stop, bucket.state.merging(arrival))
        if taken.changed:
            for one in taken.units:
                self._answer_waiting(job, one)
            for bucket, (first, stop) in taken.ranges:
                self._answer_range(bucket, first, stop)
                self._add_bucket(job, bucket, first, stop, bucket.state.advancing(first, stop))

    def go_on(self, job: J, shard: JobShard) -> None:
        """A step was committed: what holds it goes on."""
        self._put(job, [one for one in shard.units if one.spec.slots])
        for bucket in shard.buckets.values():
            if bucket.state.spec.slots:
                self._add_bucket(job, bucket, 0, len(bucket.state), bucket.state.advancing(0, len(bucket.state)))

    def ask(self, job: J, wait: PullWait, units: Sequence[AnyTable], shard: JobShard) -> None:
        """Answers a pull, as far as it can be now; for the rest it waits."""
        for number, ranges in list(wait.open.items()):
            bucket = shard.buckets[number]
            for first, stop in ranges.overlaps(0, bucket.state.count):
                self._answer_or_refuse(bucket, wait, first, stop)
                if wait.dropped:
                    return
            if number in wait.open:
                bucket.pulls.wait_for(wait)
        if units:
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

    def _add_bucket(self, job: J, bucket: PlainBucket, first: int, stop: int, changes: Changed) -> None:
        part = bucket.state.spec.part
        work = BucketWork(int(part.priorities[first]), int(part.bounds[stop] - part.bounds[first]))
        self._add(job, work, self._changing(job, bucket, changes))

    def _changing(self, job: J, bucket: PlainBucket, changes: Changed) -> Iterator[None]:
        try:
            for first, stop, goes_on in changes:
                self._answer_range(bucket, first, stop)
                if goes_on:
                    yield
        except RuleFailedError as error:
            self._hands.fail(job, str(error))
        except MemoryError as error:
            self._hands.fail(job, f"no memory to merge bucket {bucket.state.spec.number}: {error}")

    def _answer_range(self, bucket: PlainBucket, first: int, stop: int) -> None:
        waiting = bucket.pulls.waiting(first, stop)
        for wait in waiting:
            if not wait.dropped:  # An answer may lose the connection of those behind it.
                self._answer_or_refuse(bucket, wait, first, stop)
        bucket.pulls.tidy(waiting)

    def _answer_or_refuse(self, bucket: PlainBucket, wait: PullWait, first: int, stop: int) -> None:
        for low, high in bucket.pulls.ready(wait, first, stop):
            self._hands.answer_range(wait, bucket, low, high)
            if wait.dropped:
                return
        if wait.reading is Reading.EXACT:
            passed = bucket.pulls.passed(wait, first, stop)
            if passed is not None:
                self._hands.refuse(wait, passed)

    def _put(self, job: J, units: Iterable[AnyTable]) -> None:
        """These may have something to merge."""
        for one in units:
            if not one.merge_is_due:
                one.merge_is_due = True
                self._add(job, one, self._merging(job, one))

    def _answer_units(self, job: J, wait: PullWait, units: Sequence[AnyTable]) -> None:
        for one in units:
            wait.open_units.add(one.spec.bucket)
        for one in units:
            if not wait.dropped:
                self._answer_or_wait(job, wait, one)

    def _merging(self, job: J, one: AnyTable) -> Iterator[None]:
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

    def _answering(self, job: J, wait: PullWait, one: AnyTable) -> Iterator[None]:
        if wait.dropped:
            return
        self.stage = "answer"
        try:
            yield from self._hands.answer(wait, one)
        except RuleFailedError as error:  # Rows that are read are brought up to date by it.
            self._hands.fail(job, str(error))
        except MemoryError as error:
            self._hands.fail(job, f"no memory to answer a pull of key {one.spec.key!r}: {error}")

    def _answer_or_wait(self, job: J, wait: PullWait, one: AnyTable) -> None:
        passed = one.passed(wait)
        if passed is not None:
            self._hands.refuse(wait, passed)
        elif one.can_answer(wait):
            self._begin_answer(job, wait, one)
        else:
            one.wait_for(wait)

    def _begin_answer(self, job: J, wait: PullWait, one: AnyTable) -> None:
        answering = self._answering(job, wait, one)
        if not one.is_one_piece(wait):
            self._add(job, one, answering)
            return
        for _ in answering:
            pass

    def _answer_waiting(self, job: J, one: AnyTable) -> None:
        for wait in one.answerable():
            if not wait.dropped:  # An answer may lose the connection of those behind it.
                self._begin_answer(job, wait, one)
