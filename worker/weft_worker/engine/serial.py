"""The engine without threads: each piece of work runs to its end, on the caller's thread, before `push` returns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from weft_worker.engine.engine import Engine, work_error
from weft_worker.engine.errors import EngineTimeoutError, EngineUsageError, WorkError
from weft_worker.engine.work import Body, OnComplete, Variable, Work, WorkState

COMPLETION_TIMEOUT_S = 600.0


class SerialEngine(Engine):
    """Runs everything in the order of pushing. A traceback then leads to the push. One thread may use it.

    Asynchronous work is waited for, at most `completion_timeout_s`; it fails when that passes. Work that is pushed by
    work runs after the one that pushed it. Lanes are checked, and otherwise mean nothing.
    """

    def __init__(self, lanes: Mapping[str, int], *, completion_timeout_s: float = COMPLETION_TIMEOUT_S) -> None:
        super().__init__(lanes)
        self._completion_timeout_s = completion_timeout_s
        self._ready: list[Work] = []
        self._running = False

    def release(self, variable: Variable) -> None:
        self._ready += self._dependencies.release(variable)

    def wait(self, variables: Iterable[Variable], timeout_s: float) -> None:
        self._check_outside("wait")
        self._check_open()
        failures = []
        for variable in variables:
            if variable.owner is not self._dependencies:
                raise EngineUsageError(f"'wait' names {variable}, which another engine made")
            failures.append(variable.standing)
        error = self._dependencies.raise_now(failures)
        if error is not None:
            raise error

    def wait_all(self, timeout_s: float) -> None:
        self._check_outside("wait_all")
        self._check_open()
        error = self._dependencies.raise_all_now()
        if error is not None:
            raise error

    def close(self, timeout_s: float = 30.0) -> None:
        self._check_outside("close")
        self._closed = True
        self._ready.clear()

    def _is_inside_work(self) -> bool:
        return self._running

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
        self._check_open()
        _, ready = self._dependencies.push(reads, writes, name=name, lane=lane, priority=priority, body=body)
        self._ready += ready
        if self._running:
            return
        self._running = True
        try:
            while self._ready:
                self._execute(self._ready.pop(0))
        finally:
            self._running = False

    def _execute(self, work: Work) -> None:
        body = work.body
        assert body is not None
        work.state = WorkState.RUNNING
        error: WorkError | None = None
        try:
            if body.start is not None:
                self._start_and_wait(work, body.start)
            elif body.run is not None:
                body.run()
        except Exception as cause:  # noqa: BLE001  # the outermost frame of a task: the error goes to those who wait
            error = work_error(work.name, cause)
        self._ready += self._dependencies.complete(work, error)

    def _start_and_wait(self, work: Work, start: Callable[[OnComplete], None]) -> None:
        completed = threading.Event()
        lock = threading.Lock()
        errors: list[BaseException] = []

        def on_complete(error: BaseException | None = None) -> None:
            with lock:
                if completed.is_set():
                    raise EngineUsageError(f"{work.name!r} was completed twice")
                errors.extend([] if error is None else [error])
                completed.set()

        start(on_complete)
        if not completed.wait(self._completion_timeout_s):
            raise EngineTimeoutError(f"{work.name!r} was not completed within {self._completion_timeout_s:g} s")
        if errors:
            raise errors[0]
