"""What became of a slot's pushes, key by key: which are under way, and which have to be pushed again."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Final, NamedTuple

from weft_kvstore.errors import StoreLostError, StoreTimeoutError
from weft_kvstore.runtime.store_future import StoreFuture, before_failure

MOST_SILENT: Final = 64
"""Failed steps of a key that are remembered where the shards were silent: who goes on after so many does not look."""

_log = logging.getLogger("weft.store")


class FailedPush(NamedTuple):
    """A step of a key whose push failed."""

    step: int
    error: BaseException

    @property
    def is_refused(self) -> bool:
        """Whether it is certain that the shards have not all of it. Where they were silent, they may."""
        return not isinstance(self.error, StoreTimeoutError | StoreLostError)


class PushLog:
    """Of each key the pushes that have not ended, and the steps whose push failed, until they are pushed again.

    A failure is here before the push's future ends, so who has seen a future fail finds it. Each call takes a time that
    does not depend on how many pushes and pulls are under way.
    """

    def __init__(self) -> None:
        self._open: dict[str, OrderedDict[int, Future[Any]]] = {}
        """By key and step: the last push of it."""
        self._guards: dict[str, deque[tuple[int, Future[Any]]]] = {}
        """By key: versions that pulls wait for, and what fails them."""
        self._failed: dict[str, dict[int, FailedPush]] = {}
        self._lock = threading.RLock()
        """Held for a moment: failures come on the store's thread. A signal's handler may call too."""

    def add(self, names: Sequence[str], steps: Sequence[int], pushed: Future[Any]) -> None:
        """The steps are under way."""
        with self._lock:
            for name, step in zip(names, steps, strict=True):
                self._under_way(name)
                self._open.setdefault(name, OrderedDict())[step] = pushed
                if name in self._failed:
                    self._failed[name].pop(step, None)
        before_failure(pushed, lambda error: self._fail(names, steps, pushed, error))

    def guards(self, names: Sequence[str], versions: Sequence[int]) -> list[Future[Any]]:
        """Futures that fail when a push under way fails without which one of these versions does not come."""
        found: dict[int, Future[Any]] = {}
        guard: Future[Any] | None = None
        with self._lock:
            for name, version in zip(names, versions, strict=True):
                under_way = self._under_way(name)
                if len(under_way) == 1:
                    ((step, pushed),) = under_way.items()
                    if step < version:
                        found[id(pushed)] = pushed
                elif under_way:
                    guard = guard or StoreFuture()
                    found[id(guard)] = guard
                    self._guards.setdefault(name, deque()).append((version, guard))
        return list(found.values())

    def failed(self, name: str, version: int) -> FailedPush | None:
        """The earliest failed step without which there is no such version."""
        return self._earliest(name, lambda one: one.step < version)

    def refused(self, name: str, version: int) -> FailedPush | None:
        """The same, of those that the shards certainly have not."""
        return self._earliest(name, lambda one: one.step < version and one.is_refused)

    def _earliest(self, name: str, counts: Callable[[FailedPush], bool]) -> FailedPush | None:
        if name not in self._failed:
            return None
        with self._lock:
            return min(filter(counts, self._failed[name].values()), default=None, key=lambda one: one.step)

    def _under_way(self, name: str) -> OrderedDict[int, Future[Any]]:
        """The pushes of a key that have not ended, without those at the head that have."""
        under_way, guards = self._open.get(name), self._guards.get(name)
        if under_way is None:
            return OrderedDict()
        while under_way and (first := next(iter(under_way.items())))[1].done():
            del under_way[first[0]]
        while guards and (not under_way or guards[0][0] <= next(iter(under_way))):
            guards.popleft()
        return under_way

    def _fail(self, names: Iterable[str], steps: Iterable[int], pushed: Future[Any], error: BaseException) -> None:
        """A push fails: pulls that wait for it do too."""
        ends: list[Future[Any]] = []
        is_refused = False
        with self._lock:
            for name, step in zip(names, steps, strict=True):
                if self._open[name].get(step) is not pushed:
                    continue  # It was pushed again.
                del self._open[name][step]
                one, failed = FailedPush(step, error), self._failed.setdefault(name, {})
                is_refused = one.is_refused
                if is_refused or len(failed) < MOST_SILENT:
                    failed[step] = one
                guards = self._guards.pop(name, deque())
                ends += [guard for version, guard in guards if version > step]
                self._guards[name] = deque(one for one in guards if one[0] <= step)
        if is_refused:
            _log.warning("it has to be pushed again: %s", error)
        for guard in ends:
            with suppress(InvalidStateError):  # Pushes of several of its keys may fail at once.
                guard.set_exception(error)
