"""Work that waits: the most urgent first within a job, jobs in turn by bytes. Pure.

What hands a job's messages over takes turns with the rest of its work, so that what is urgent is seen in time and a
flood of messages does not keep a job from merging.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from weft_kvstore.merging.work import Work
from weft_kvstore.shard.turns import Turns

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
        self._turns: Turns[J] = Turns()
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
