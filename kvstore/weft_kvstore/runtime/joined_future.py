"""Futures made of futures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from weft_kvstore.runtime.futures import StoreFuture, driver_of, on_end

T = TypeVar("T")
R = TypeVar("R")


def joined(futures: Sequence[Future[T]], make: Callable[[list[T]], R], guards: Iterable[Future[Any]] = ()) -> Future[R]:
    """Ends when all have ended, with what `make` makes of their results; with the first error, at once.

    It does not wait for `guards`, but fails when one of them does. `make` runs on the thread that ends the last: it is
    the store's own, as `on_end` says. Who waits for the result leads the store of the first part that has one.
    """
    result: StoreFuture[R] = StoreFuture(driver_of(*futures))
    join = _Join(result, futures, make)
    for guard in guards:
        on_end(guard, join.guard)
    for future in futures:
        on_end(future, join.ended)
    if not futures:
        join.finish()
    return result


def finished(value: T) -> Future[T]:
    """A future that has ended."""
    future: StoreFuture[T] = StoreFuture()
    future.set_result(value)
    return future


def then(future: Future[T], begin: Callable[[T], Future[R]]) -> Future[R]:
    """What `begin` begins with the future's result, on the thread that ends the latter."""
    result: StoreFuture[R] = StoreFuture(driver_of(future))

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
                later = begin(first.result())
                result.driver = result.driver or driver_of(later)
                on_end(later, pass_on)
                return
            except Exception as raised:  # noqa: BLE001  # a callback's outermost frame: who waits has to hear of it
                error = raised
        result.set_exception(error)

    on_end(future, ended)
    return result


class _Join:
    """Ends its future once, whichever thread comes first. A future keeps its callbacks for ever: so what is joined is
    forgotten when it is over, or a guard would hold values, and futures each other."""

    def __init__(self, result: Future[Any], futures: Sequence[Future[Any]], make: Callable[[list[Any]], Any]) -> None:
        self._missing = len(futures)
        self._parts: tuple[Future[Any], Sequence[Future[Any]], Callable[[list[Any]], Any]] | None
        self._parts = (result, futures, make)
        self._lock = threading.Lock()

    def ended(self, future: Future[Any]) -> None:
        """One of them has ended."""
        self.watch(future)
        with self._lock:
            self._missing -= 1
            missing = self._missing
        if not missing:
            self.finish()

    def guard(self, future: Future[Any]) -> None:
        """A push that has arrived all the same hinders nobody."""
        if not (isinstance(future, StoreFuture) and future.arrived):
            self.watch(future)

    def watch(self, future: Future[Any]) -> None:
        """What it does when it fails is all that counts."""
        error = future.exception()
        if error is not None and (parts := self._take()) is not None:
            parts[0].set_exception(error)

    def finish(self) -> None:
        """All have ended."""
        parts = self._take()
        if parts is None:
            return
        result, futures, make = parts
        try:
            value = make([one.result() for one in futures])
        except Exception as error:  # noqa: BLE001  # a callback's outermost frame: who waits has to hear of it
            result.set_exception(error)
        else:
            result.set_result(value)

    def _take(self) -> tuple[Future[Any], Sequence[Future[Any]], Callable[[list[Any]], Any]] | None:
        """What there is to end, for the first who asks."""
        with self._lock:
            parts, self._parts = self._parts, None
            return parts
