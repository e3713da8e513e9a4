"""Futures made of futures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


def joined(futures: Sequence[Future[T]], make: Callable[[list[T]], R], guards: Iterable[Future[Any]] = ()) -> Future[R]:
    """Ends when all have ended, with what `make` makes of their results; with the first error, at once.

    It does not wait for `guards`, but fails when one of them does. `make` runs on the thread that ends the last.
    """
    result: Future[R] = Future()
    result.set_running_or_notify_cancel()
    join = _Join(result, len(futures))

    def ended(future: Future[T]) -> None:
        error = future.exception()
        if error is not None:
            join.fail(error)
        elif join.is_last():
            join.end(lambda: make([one.result() for one in futures]))

    for guard in guards:
        guard.add_done_callback(join.watch)
    for future in futures:
        future.add_done_callback(ended)
    if not futures:
        join.end(lambda: make([]))
    return result


def finished(value: T) -> Future[T]:
    """A future that has ended."""
    future: Future[T] = Future()
    future.set_result(value)
    return future


def then(future: Future[T], begin: Callable[[T], Future[R]]) -> Future[R]:
    """What `begin` begins with the future's result, on the thread that ends the latter."""
    result: Future[R] = Future()
    result.set_running_or_notify_cancel()

    def pass_on(later: Future[R]) -> None:
        error = later.exception()
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(later.result())

    def ended(first: Future[T]) -> None:
        error = first.exception()
        if error is None:
            try:
                begin(first.result()).add_done_callback(pass_on)
                return
            except Exception as raised:  # noqa: BLE001  # a callback's outermost frame: who waits has to hear of it
                error = raised
        result.set_exception(error)

    future.add_done_callback(ended)
    return result


class _Join:
    """Ends its future once, whichever thread comes first."""

    def __init__(self, result: Future[Any], missing: int) -> None:
        self._result = result
        self._missing = missing
        self._over = False
        self._lock = threading.Lock()

    def is_last(self) -> bool:
        with self._lock:
            self._missing -= 1
            return self._missing == 0

    def watch(self, guard: Future[Any]) -> None:
        if (error := guard.exception()) is not None:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        if self._take():
            self._result.set_exception(error)

    def end(self, make: Callable[[], Any]) -> None:
        if not self._take():
            return
        try:
            value = make()
        except Exception as error:  # noqa: BLE001  # a callback's outermost frame: who waits has to hear of it
            self._result.set_exception(error)
        else:
            self._result.set_result(value)

    def _take(self) -> bool:
        with self._lock:
            first, self._over = not self._over, True
            return first
