"""What other threads have a thread carry out, one thing after the other."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from weft_kvstore.errors import StoreError, StoreTimeoutError

COMMAND_TIMEOUT_S: Final = 30.0


class Commands:
    """Of the thread that serves `named`. `wake` makes it look here soon."""

    def __init__(self, named: str, wake: Callable[[], None]) -> None:
        self._named = named
        self._wake = wake
        self._waiting: deque[tuple[Callable[[], None], Future[None]]] = deque()
        self._is_over = True
        self._lock = threading.Lock()
        """Held while a command is appended, and while none may be any more."""

    def begin(self) -> None:
        """The thread takes commands from now on."""
        self._is_over = False

    def carry_out(self, work: Callable[[], None]) -> None:
        """Carries out work on the thread, and waits for it. Raises what the work raises, StoreError where the thread
        takes none, and StoreTimeoutError for what has not begun in time, and will not: what has begun is waited for, so
        that no caller gives up what is done after all."""
        future: Future[None] = Future()
        with self._lock:
            if self._is_over:
                raise StoreError(f"{self._named} is not running")
            self._waiting.append((work, future))
        self._wake()
        try:
            future.result(COMMAND_TIMEOUT_S)
        except TimeoutError as error:
            if not future.cancel():
                future.result()
                return
            raise StoreTimeoutError(f"{self._named} did not answer for {COMMAND_TIMEOUT_S} s") from error

    def work(self) -> None:
        """Carries out what waits: on the thread."""
        while self._waiting:
            work, future = self._waiting.popleft()
            if not future.set_running_or_notify_cancel():
                continue  # Its caller has gone, and has been told that it was not done.
            try:
                work()
            except Exception as error:  # noqa: BLE001 - the caller waits for it, on another thread; it is raised there
                future.set_exception(error)
            else:
                future.set_result(None)

    def end(self) -> None:
        """None is taken any more, and what waits is not done. Idempotent."""
        with self._lock:
            self._is_over = True
        while self._waiting:
            future = self._waiting.popleft()[1]
            if future.set_running_or_notify_cancel():
                future.set_exception(StoreError(f"{self._named} was stopped"))
