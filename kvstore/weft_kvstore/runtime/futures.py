"""Futures of the store and deadlines: what a caller waits for, and when it is due. Pure."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Container
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

# --- A future whose waiting thread does the store's work meanwhile ----------------------------------------------------
# Pure: the work is its driver's.


T = TypeVar("T")

_log = logging.getLogger("weft.store")

# Names of `concurrent.futures._base`: a future that has begun, so that nobody can cancel it, and one that has ended.
_RUNNING = "RUNNING"
_FINISHED = "FINISHED"


class Driver(Protocol):
    """What brings futures to their end."""

    def drive(self, future: StoreFuture[Any], timeout_s: float | None) -> None:
        """Works until the future has ended, at most that long. It may return early where somebody else works on.
        Raises StoreError where the future could never end while this waits."""

    def ended(self, future: StoreFuture[Any]) -> None:
        """It has ended, on this thread; `call_back` is to be called soon, where it has callbacks."""


class StoreFuture(Future[T]):
    """A future that has begun. Whoever waits for its result leads the store meanwhile, if nobody does.

    Callbacks run on the driver's own thread, as they may do anything; `on_end`'s, which are the store's own, where the
    future ends. Without a driver it is a plain future.
    """

    def __init__(self, driver: Driver | None = None) -> None:
        super().__init__()
        self._state = _RUNNING
        self.driver = driver
        self._hooks: list[Callable[[Future[T]], None]] = []
        self._failure: BaseException | None = None
        self._failure_hooks: list[Callable[[BaseException], None]] = []
        self.arrived = False
        """Of a push that is part of it: whether the shards have it all the same, where the future fails."""

    def result(self, timeout: float | None = None) -> T:
        if self._state != _FINISHED and self.driver is not None:
            timeout = self._driven(self.driver, timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if self._state != _FINISHED and self.driver is not None:
            timeout = self._driven(self.driver, timeout)
        return super().exception(timeout)

    def hook(self, hook: Callable[[Future[T]], None]) -> None:
        """Calls it when the future ends, or now; see `on_end`."""
        with self._condition:
            if self._state != _FINISHED:
                self._hooks.append(hook)
                return
        hook(self)

    def hook_failure(self, hook: Callable[[BaseException], None]) -> None:
        """Calls it when the future is about to fail, or now; see `before_failure`."""
        with self._condition:
            if self._failure is None:
                if self._state != _FINISHED:
                    self._failure_hooks.append(hook)
                return
        hook(self._failure)

    def set_exception(self, exception: BaseException | None) -> None:
        with self._condition:
            self._failure = exception
            hooks, self._failure_hooks = self._failure_hooks, []
        for hook in hooks:
            hook(exception)  # type: ignore[arg-type]  # None is for those who clear a future, and nobody does
        super().set_exception(exception)

    def call_back(self) -> None:
        """Calls the callbacks."""
        super()._invoke_callbacks()  # type: ignore[misc]  # typeshed does not have it

    def _driven(self, driver: Driver, timeout_s: float | None) -> float | None:
        """What is left to wait, once it was driven: nothing where the time is up."""
        driver.drive(self, timeout_s)
        return timeout_s if timeout_s is None else 0.0

    def _invoke_callbacks(self) -> None:
        """Called once by what ends it, when its state is set already."""
        hooks, self._hooks, self._failure_hooks = self._hooks, [], []
        for hook in hooks:
            try:
                hook(self)
            except Exception:  # noqa: BLE001  # a hook's outermost frame, as the standard library has it for callbacks
                _log.exception("what follows the end of %r failed", self)
        if self.driver is not None:
            self.driver.ended(self)
        elif self._done_callbacks:  # type: ignore[attr-defined]  # typeshed does not have it
            self.call_back()

    @property
    def has_callbacks(self) -> bool:
        return bool(self._done_callbacks)  # type: ignore[attr-defined]  # as above


def on_end(future: Future[Any], hook: Callable[[Future[Any]], None]) -> None:
    """Calls the hook when the future ends, on the thread that ends it, or now. It belongs to the store: it waits for
    nothing, takes no lock that is held while something is waited for, and does not raise."""
    if isinstance(future, StoreFuture):
        future.hook(hook)
    else:
        future.add_done_callback(hook)


def driver_of(*futures: Future[Any]) -> Driver | None:
    """What brings the first of them that has one to its end."""
    return next((one.driver for one in futures if isinstance(one, StoreFuture) and one.driver is not None), None)


def before_failure(future: Future[Any], hook: Callable[[BaseException], None]) -> None:
    """Calls the hook with the future's error before anybody sees it fail, or now; it is as those of `on_end`. Of a
    future that is not the store's own, when it has failed."""
    if isinstance(future, StoreFuture):
        future.hook_failure(hook)
    else:
        future.add_done_callback(lambda ended: None if (error := ended.exception()) is None else hook(error))


# --- Deadlines that all lie equally far ahead when they are set, so that they come due in the order set ---------------


class Deadlines:
    """Numbers of operations by when they are due; numbers only, so that what has ended is not kept alive. `waiting` is
    appended to, (due, number)."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[float, int]] = deque()

    def due(self, now: float, still_open: Container[int]) -> list[int]:
        """Takes out those whose time has come and that are open, and at the head those that are not."""
        found: list[int] = []
        while self.waiting and (self.waiting[0][0] <= now or self.waiting[0][1] not in still_open):
            number = self.waiting.popleft()[1]
            if number in still_open:
                found.append(number)
        return found

    def next(self) -> float:
        """When `due` may have something; infinity where nothing waits."""
        return self.waiting[0][0] if self.waiting else float("inf")
