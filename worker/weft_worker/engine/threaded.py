"""The engine with lanes of threads."""

from __future__ import annotations

import contextlib
import heapq
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from weft_worker.engine.dependencies import listing
from weft_worker.engine.engine import Engine, work_error
from weft_worker.engine.errors import EngineTimeoutError, EngineUsageError, WorkError
from weft_worker.engine.work import Body, OnComplete, Variable, Work, WorkState


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
        """Drops what is ready and ends its threads."""
        self._closed = True
        self._ready.clear()
        self._arrived.notify_all()


class ThreadedEngine(Engine):
    """An engine whose lanes each have threads of their own, made once. `lanes` maps a lane's name to their number.

    A thread is held while work runs or is started, never while an asynchronous completion is awaited: one thread a
    lane is enough to be free of deadlock. Safe to use from any thread.
    """

    def __init__(self, lanes: Mapping[str, int], *, name: str = "engine") -> None:
        super().__init__(lanes)
        self._lock = threading.Lock()
        self._done = threading.Condition(self._lock)
        self._waiting = 0
        self._lanes = {lane: Lane(lane, threads, self._lock) for lane, threads in lanes.items()}
        self._threads = [
            threading.Thread(target=self._serve, args=(lane,), name=f"{name}-{lane.name}-{number}", daemon=True)
            for lane in self._lanes.values()
            for number in range(lane.threads)
        ]
        for thread in self._threads:
            thread.start()

    def release(self, variable: Variable) -> None:
        with self._lock:
            if not self._closed:
                self._dispatch(self._dependencies.release(variable))

    def wait(self, variables: Iterable[Variable], timeout_s: float) -> None:
        self._check_outside("wait")
        with self._lock:
            self._check_open()
            probe, ready = self._dependencies.push(dict.fromkeys(variables), (), name="wait")
            self._dispatch(ready)
            if not self._wait_for(lambda: probe.state is WorkState.DONE, timeout_s):
                missing = self._dependencies.blockers(probe)
                raise EngineTimeoutError(f"not finished within {timeout_s:g} s: {listing(missing)}")
            error = self._dependencies.raise_now([probe.failure, *(variable.standing for variable in probe.reads)])
        if error is not None:
            raise error

    def wait_all(self, timeout_s: float) -> None:
        self._check_outside("wait_all")
        with self._lock:
            self._check_open()
            last = next(reversed(self._dependencies.unfinished), 0)
            if not self._wait_for(lambda: next(iter(self._dependencies.unfinished), last + 1) > last, timeout_s):
                missing = [work for sequence, work in self._dependencies.unfinished.items() if sequence <= last]
                raise EngineTimeoutError(f"not finished within {timeout_s:g} s: {listing(missing)}")
            error = self._dependencies.raise_all_now()
        if error is not None:
            raise error

    def close(self, timeout_s: float = 30.0) -> None:
        self._check_outside("close")
        with self._lock:
            self._closed = True
            for lane in self._lanes.values():
                lane.close()
            self._done.notify_all()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            with self._lock:
                busy = [work for work in self._dependencies.unfinished.values() if work.state is WorkState.RUNNING]
            raise EngineTimeoutError(f"threads are still busy after {timeout_s:g} s with {listing(busy)}")

    def _is_inside_work(self) -> bool:
        return threading.current_thread() in self._threads

    def _admit(
        self,
        body: Body,
        reads: Iterable[Variable],
        writes: Iterable[Variable],
        *,
        lane: str,
        name: str,
        priority: int,
    ) -> None:
        with self._lock:
            self._check_open()
            _, ready = self._dependencies.push(reads, writes, name=name, lane=lane, priority=priority, body=body)
            self._dispatch(ready)

    def _serve(self, lane: Lane) -> None:
        """A thread's life."""
        while True:
            with self._lock:
                work = lane.take()
            if work is None:
                return
            self._execute(work)
            del work  # what it held must not live until the next one comes

    def _execute(self, work: Work) -> None:
        body = work.body
        assert body is not None
        error: WorkError | None = None
        try:
            if body.start is not None:
                body.start(self._completion(work))
            elif body.run is not None:
                body.run()
        except Exception as cause:  # noqa: BLE001  # the outermost frame of a task: the error goes to those who wait
            error = work_error(work.name, cause)
        if error is not None or body.start is None:
            # Work that raises after it has completed keeps its error for `wait_all`; nobody is there to be told twice.
            with contextlib.suppress(EngineUsageError):
                self._complete(work, error)

    def _completion(self, work: Work) -> OnComplete:
        def on_complete(error: BaseException | None = None) -> None:
            self._complete(work, None if error is None else work_error(work.name, error))

        return on_complete

    def _complete(self, work: Work, error: WorkError | None) -> None:
        with self._lock:
            if self._closed:
                return
            self._dispatch(self._dependencies.complete(work, error))
            if self._waiting:
                self._done.notify_all()

    def _dispatch(self, ready: Iterable[Work]) -> None:
        for work in ready:
            self._lanes[work.lane].put(work)

    def _wait_for(self, finished: Callable[[], bool], timeout_s: float) -> bool:
        """Whether `finished` came true in time. Called with the lock held."""
        self._waiting += 1
        try:
            self._done.wait_for(lambda: self._closed or finished(), timeout_s)
        finally:
            self._waiting -= 1
        done = finished()
        if not done:
            self._check_open()
        return done
