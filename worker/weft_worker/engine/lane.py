"""A lane: ready work by priority, and the condition that its threads wait on."""

from __future__ import annotations

import heapq
import threading

from weft_worker.engine.work import Work, WorkState


class Lane:
    """The ready work of one lane. Everything is called with the engine's lock held; `threads` is fixed."""

    def __init__(self, name: str, threads: int, lock: threading.Lock) -> None:
        if threads < 1:
            raise ValueError(f"lane {name!r} needs a thread at least, not {threads}")
        self.name = name
        self.threads = threads
        self._arrived = threading.Condition(lock)
        self._ready: list[Work] = []
        self._closed = False

    def put(self, work: Work) -> None:
        """Adds ready work and wakes one thread."""
        heapq.heappush(self._ready, work)
        self._arrived.notify()

    def take(self) -> Work | None:
        """The most urgent work, marked as running, waiting for one to arrive; None once the lane is closed."""
        while not self._ready and not self._closed:
            self._arrived.wait()
        if self._closed:
            return None
        work = heapq.heappop(self._ready)
        work.state = WorkState.RUNNING
        return work

    def close(self) -> None:
        """Drops what is ready and sends every thread home."""
        self._closed = True
        self._ready.clear()
        self._arrived.notify_all()
