"""Futures of the store: what a caller waits for; futures made of futures; work for another thread. Pure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError, wait
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol, TypeVar

from weft_kvstore.errors import StoreLostError

# --- A future whose waiting thread does the store's work meanwhile ----------------------------------------------------
# Pure: the work is its driver's.


T = TypeVar("T")

_log = logging.getLogger("weft.store")

# Names of `concurrent.futures._base`: a future that has begun, so that nobody can cancel it, and one that has ended.
_RUNNING = "RUNNING"
_FINISHED = "FINISHED"

_ENDED: Final = object()
"""In the place of a future's lock: it has ended, and nobody had asked for the lock."""


class Driver(Protocol):
    """Does the work that ends futures. `ended` is called for `waited_for`, and for futures with callbacks."""

    waited_for: StoreFuture[Any] | None

    def drive(self, future: StoreFuture[Any], timeout_s: float | None) -> None:
        """Works until the future has ended, at most that long. It may return early where somebody else works on.
        Raises StoreError where the future could never end while this waits."""

    def ended(self, future: StoreFuture[Any]) -> None:
        """It is `waited_for`, or has callbacks, and has ended, on this thread; its callbacks are to be invoked soon."""


class StoreFuture(Future[T]):
    """A future that is running, and cannot be cancelled. A thread that waits for its result does the driver's work.

    Callbacks run on another thread, as they may do anything; one that is added once it has ended runs at once, as in
    any future. Hooks (`on_end`) are the store's own, and run on the thread that ends the future. Without a driver it is
    a plain future.

    To make the lock of a plain future takes longer than to send a small message, and most futures never need it. So it
    is made on demand. The thread that demands it and the thread that ends the future both set `_lock`, and the first
    wins: to a lock, under which the future ends, or to `_ENDED`. Hooks need no lock: the thread that ends the future
    removes them one by one, and a thread that has added one checks afterwards whether it is still there.
    """

    has_ended = False
    """As `done()`, without a call: it is read several times in every call of the store."""
    _state = _RUNNING
    _result: Any = None
    _exception: BaseException | None = None
    _waiters: list[Any] = []  # noqa: RUF012  # never changed: each has its own with the lock
    _done_callbacks: list[Callable[[Future[T]], Any]] = []  # noqa: RUF012
    _hooks: list[Callable[[Future[T]], None]] = []  # noqa: RUF012

    driver: Driver | None = None

    def __getattr__(self, name: str) -> Any:
        """Makes what only callbacks and plain waits need; with `setdefault`, one of several threads wins."""
        if name != "_condition":
            raise AttributeError(name)
        own = self.__dict__
        own.setdefault("_waiters", [])
        own.setdefault("_done_callbacks", [])
        condition = own.setdefault("_lock", Future()._condition)
        if condition is _ENDED:
            self._state, self.has_ended = _FINISHED, True  # The thread that ends it is about to set this.
            condition = Future()._condition
        return own.setdefault("_condition", condition)

    def done(self) -> bool:
        """Whether it has ended. Takes no lock."""
        return self.has_ended

    def result(self, timeout: float | None = None) -> T:
        if not self.has_ended and self.driver is not None:
            self.driver.drive(self, timeout)
            timeout = timeout and 0.0
        if self.has_ended and self._exception is None:
            return self._result  # type: ignore[no-any-return]  # it was given one of its type
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self.has_ended and self.driver is not None:
            self.driver.drive(self, timeout)
            timeout = timeout and 0.0
        return super().exception(timeout)

    def sleep(self, woken: SimpleQueue[None], timeout_s: float) -> None:
        """Waits until it has ended, or something is put in `woken`, at most that long. It holds no lock that the thread
        which ends it needs, so that a signal's handler may run at any time and wait too."""

        def wake(_: Future[T]) -> None:
            woken.put(None)

        self.hook(wake)
        try:
            with suppress(Empty):
                woken.get(timeout=timeout_s)
        finally:
            _withdrawn(wake, self._hooks)

    def hook(self, hook: Callable[[Future[T]], None]) -> None:
        """Calls it when the future ends, or now; see `on_end`."""
        self.__dict__.setdefault("_hooks", []).append(hook)
        if self.has_ended and _withdrawn(hook, self._hooks):
            hook(self)

    def set_result(self, result: T) -> None:
        self.end(result, None)

    def set_exception(self, exception: BaseException | None) -> None:
        self.end(None, exception)

    def end(self, result: T | None, exception: BaseException | None) -> None:
        """Ends it with the exception where there is one, else with the result."""
        if self.has_ended:
            raise InvalidStateError(f"{self._state}: {self!r}")
        self._result, self._exception = result, exception
        condition = self.__dict__.setdefault("_lock", _ENDED)
        if condition is _ENDED:
            self._state, self.has_ended = _FINISHED, True
        else:
            with condition:
                self._state, self.has_ended = _FINISHED, True
                for waiter in self._waiters:
                    (waiter.add_result if self._exception is None else waiter.add_exception)(self)
                condition.notify_all()
        interrupted: BaseException | None = None
        while self._hooks and (hook := _taken(self._hooks)) is not None:
            try:
                hook(self)
            except Exception:  # noqa: BLE001  # a hook's outermost frame, as the standard library has it for callbacks
                _log.exception("what follows the end of %r failed", self)
            except BaseException as raised:  # noqa: BLE001  # a signal's handler's: the other hooks are called first
                interrupted = raised
        driver = self.driver
        if driver is None:
            if self._done_callbacks:
                self._invoke_callbacks()
        elif driver.waited_for is self or self._done_callbacks:
            driver.ended(self)
        if interrupted is not None:
            raise interrupted


# Not that of a plain future, which makes the lock; nor one in Python, as many are made.
StoreFuture.__init__ = object.__init__  # type: ignore[method-assign]


def _taken(hooks: list[Any]) -> Any:
    """Removes and returns the first; None where there is none."""
    try:
        return hooks.pop(0)
    except IndexError:
        return None


def _withdrawn(hook: Any, hooks: list[Any]) -> bool:
    """Removes it. False if the thread that ends the future has."""
    try:
        hooks.remove(hook)
    except ValueError:
        return False
    return True


def on_end(future: Future[Any], hook: Callable[[Future[Any]], None]) -> None:
    """Calls the hook when the future ends, on the thread that ends it, or now. Only the store's own code has hooks:
    they never wait, take no lock that is held during a wait, and do not raise."""
    if isinstance(future, StoreFuture):
        future.hook(hook)
    else:
        future.add_done_callback(hook)


def error_of(future: Future[Any]) -> BaseException | None:
    """The error of a future that has ended; None where it has a result."""
    if isinstance(future, StoreFuture):
        return future._exception  # `exception` would make the lock of each.
    return CancelledError("it was given up") if future.cancelled() else future.exception()


def driver_of(*futures: Future[Any]) -> Driver | None:
    """The driver of the first of them that has one."""
    for one in futures:
        if isinstance(one, StoreFuture) and one.driver is not None:
            return one.driver
    return None


# --- Futures made of futures ------------------------------------------------------------------------------------------


R = TypeVar("R")


def joined(futures: Sequence[Future[T]], make: Callable[[list[T]], R | Future[R]]) -> StoreFuture[R]:
    """Ends once all have ended: with the first error, else with `make` of their results, or as the future that it
    returns does.

    `make` runs on the thread that ends the last, under the rules of `on_end`. Its driver is that of the first of them
    that has one.
    """
    result: StoreFuture[R] = StoreFuture()

    def finish(error: BaseException | None) -> None:
        if error is not None:
            result.set_exception(error)
        elif isinstance(made := make([one.result() for one in futures]), Future):
            result.driver = result.driver or driver_of(made)
            on_end(made, partial(hand_on, result))
        else:
            result.set_result(made)

    return _once_ended(futures, result, finish)


def after(future: Future[R], note: Callable[[BaseException | None], BaseException | None]) -> StoreFuture[R]:
    """Ends as the future does, once `note` was called with its error, or with the error that this returns; under the
    rules of `on_end`."""
    result: StoreFuture[R] = StoreFuture()

    def finish(error: BaseException | None) -> None:
        other = note(error)
        if other is None:
            hand_on(result, future)
        else:
            result.set_exception(other)

    return _once_ended([future], result, finish)


def _once_ended(
    futures: Sequence[Future[Any]], result: StoreFuture[R], finish: Callable[[BaseException | None], None]
) -> StoreFuture[R]:
    """Calls `finish` with the first error once all have ended, which ends the result; what it raises ends it too."""
    result.driver = driver_of(*futures)
    awaited = futures or [finished(None)]
    # Futures keep their callbacks for ever: these have no more of one another, nor of values, than is in `left`.
    ended = partial(_one_ended, {*map(id, awaited)}, {0: True}, [(result, finish)], [])
    for one in awaited:
        on_end(one, ended)
    return result


def _one_ended(
    missing: set[int], claim: dict[int, bool], left: list[Any], errors: list[BaseException], one: Future[Any]
) -> None:
    try:
        if (error := error_of(one)) is not None:
            errors.append(error)
        missing.discard(id(one))
        if missing or not claim.pop(0, False):  # Of the threads that find none missing, one goes on.
            return
        _, finish = left[0]
        finish(errors[0] if errors else None)
        left.clear()
    except BaseException as raised:  # who waits has to hear of it, also where a signal's handler raises here
        errors.append(raised)
        missing.discard(id(one))
        for result, _ in () if missing else left:
            if not result.has_ended:
                result.set_exception(raised)
        if not missing:
            left.clear()
        if not isinstance(raised, Exception):
            raise


def finished(value: T) -> StoreFuture[T]:
    """A future that has ended."""
    future: StoreFuture[T] = StoreFuture()
    future.set_result(value)
    return future


def nothing(_: object) -> None:
    """Of `joined`, where only the end counts."""


def then(future: Future[T], begin: Callable[[T], Future[R]]) -> StoreFuture[R]:
    """As `joined` of one."""
    return joined([future], lambda found: begin(found[0]))


def hand_on(future: StoreFuture[R], ended: Future[R]) -> None:
    """Ends the future as the other has ended."""
    error = error_of(ended)
    future.end(ended.result() if error is None else None, error)


# --- Work that another thread does between two pieces of its own ------------------------------------------------------


LOOK_S: Final = 0.2
"""How often a thread that waits for another one checks that it still runs."""


class OtherThread:
    """A thread that does work for others: `soon` queues it and does not wait; after `is_over` it is not done."""

    def __init__(self, soon: Callable[[Callable[[], None]], None], is_over: Callable[[], bool]) -> None:
        self.soon = soon
        self._is_over = is_over

    def do(self, work: Callable[[], T]) -> T:
        """Has the work done and returns, or raises, what it does. Raises StoreLostError if the thread has ended."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                if not self._is_over():
                    future.set_result(work())
            except Exception as error:  # noqa: BLE001  # it is the caller's
                future.set_exception(error)

        self.soon(run)
        while not self._is_over():
            if wait([future], LOOK_S).done:
                return future.result()
        raise StoreLostError("the store was closed while a snapshot of it was written, or restored: write it again")
