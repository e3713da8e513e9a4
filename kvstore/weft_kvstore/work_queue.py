"""Work that waits: the most urgent first within a job, jobs in turn by bytes. Pure.

Turns are deficit round robin: Shreedhar and Varghese, "Efficient fair queuing using deficit round-robin", 1996.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from weft_kvstore.work import Work

QUANTUM_BYTES: Final = 1 << 20
"""What a job may work on before it is the next one's turn."""

J = TypeVar("J", bound=Hashable)


class WorkQueue(Generic[J]):
    """A job is in `_turns` exactly while it has work in `_heaps`. A work is in it once: `Work.queued`."""

    def __init__(self, *, priorities: bool = True) -> None:
        self._priorities = priorities
        self._seq = 0
        self._heaps: dict[J, list[tuple[int, int, Work]]] = {}
        self._turns: deque[J] = deque()
        self._deficit: dict[J, int] = {}

    def __len__(self) -> int:
        return sum(len(heap) for heap in self._heaps.values())

    def __bool__(self) -> bool:
        return bool(self._turns)

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
        heap = self._heaps.get(job)
        if heap is None:
            heap = self._heaps[job] = []
            self._turns.append(job)
            self._deficit[job] = QUANTUM_BYTES
        heapq.heappush(heap, (one.priority if self._priorities else 0, one.turn, one))

    def pop(self) -> tuple[J, Work] | None:
        """The work to go on with; None where there is none."""
        while self._turns:
            job = self._turns[0]
            heap = self._heaps[job]
            one = heap[0][2]
            if self._deficit[job] < one.piece_bytes and len(self._turns) > 1:
                self._deficit[job] += QUANTUM_BYTES
                self._turns.rotate(-1)
                continue
            heapq.heappop(heap)
            one.queued = False
            self._deficit[job] = max(self._deficit[job] - one.piece_bytes, 0)
            if not heap:
                self.drop(job)
            return job, one
        return None

    def drop(self, job: J) -> None:
        """Forgets a job's work."""
        heap = self._heaps.pop(job, None)
        if heap is not None:
            for _, _, one in heap:
                one.queued = False
                one.todo.clear()
            self._turns.remove(job)
            del self._deficit[job]
