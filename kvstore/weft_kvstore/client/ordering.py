"""Order among operations: requests wait for sets before them; reads of several keys see one version. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from weft_kvstore.arrays import Array
from weft_kvstore.client.operation import Link, Operation
from weft_kvstore.errors import StorePassedError, StoreTimeoutError
from weft_kvstore.runtime.futures import Driver, StoreFuture, on_end
from weft_kvstore.store import Pulled

# --- A slot's calls of one key take effect in their order: requests come behind the values that were set before -------
# A request is a message of control, which overtakes data. A pull would miss the value; a word that there is nothing
# would end the step for which the value was meant, and then it would come too late.


@dataclass(slots=True, eq=False)
class _Behind:
    """A request and the links that it is for; of its keys, by place, the numbers of the calls that it comes behind."""

    operation: Operation
    links: Sequence[Link]
    missing: dict[int, set[int]]


class SetsUnderWay:
    """`of_key` has, by the key's place, the numbers of the calls that set it and have not ended; `_before` what comes
    behind each of those calls. Both are empty where none is under way."""

    __slots__ = ("_before", "of_key")

    def __init__(self) -> None:
        self.of_key: dict[int, set[int]] = {}
        self._before: dict[int, list[_Behind]] = {}

    def begin(self, operation: Operation, links: Sequence[Link]) -> None:
        """Begins it: what of it comes behind values that were set, once those calls have ended, however they do."""
        missing = {place: set(before) for place in operation.asks_of if (before := self.of_key.get(place))}
        for place in operation.sets:
            self.of_key.setdefault(place, set()).add(operation.number)
        if missing:
            behind = _Behind(operation, links, missing)
            for number in set().union(*missing.values()):
                self._before.setdefault(number, []).append(behind)
            for link in links:
                operation.because[link.shard] = "it comes behind a value that was set and has not arrived"
        if not missing or operation.hold(missing.keys()):
            for link in links:
                operation.begin(link)

    def ended(self, operation: Operation) -> None:
        """A call has ended: nothing comes behind it any more."""
        for place in operation.sets:
            left = self.of_key.get(place, set())
            left.discard(operation.number)
            if not left:
                self.of_key.pop(place, None)
        for behind in self._before.pop(operation.number, ()):
            if not behind.operation.ended:
                _go_on(behind, operation)

    def close(self) -> None:
        """Nothing goes on any more."""
        self.of_key.clear()
        self._before.clear()


def _go_on(behind: _Behind, before: Operation) -> None:
    free = []
    for place in before.sets:
        left = behind.missing.get(place)
        if left is not None:
            left.discard(before.number)
            if not left:
                free.append(place)
                del behind.missing[place]
    if not behind.missing:
        behind.operation.because.clear()
    if free:
        behind.operation.go_on(free, behind.links, whole=not behind.missing)


# --- Reads several keys at one version while others push --------------------------------------------------------------
# It waits for nothing: it goes on where one of its pulls ends.


TRIES: Final = 8
"""Pulls at one version. The first is at the newest that was seen. Where keys have passed it somebody trains, and each
further one looks a version further ahead, until the keys come there later than the pull does."""


class ReadSource(Protocol):
    """What it uses of a store."""

    def pull_versions(self, keys: Sequence[str], version: int) -> Future[Pulled]: ...

    def pull_many(self, keys: Sequence[str], version: int, *, exact: bool = False) -> Future[list[Array]]: ...


class ConsistentRead:
    """One such read: `future` ends with the version and the values. `moving` are the numbers of the keys that have
    versions: somebody contributes to them."""

    def __init__(
        self, source: ReadSource, keys: Sequence[str], moving: Sequence[int], driver: Driver | None = None
    ) -> None:
        self.future: StoreFuture[tuple[int, list[Array]]] = StoreFuture(driver)
        self._source = source
        self._keys = keys
        self._moving = np.array(moving, np.int64)
        self._target = 0
        self._tries = 0
        self._overdue: StoreTimeoutError | None = None

    def begin(self) -> None:
        """Looks at what there is."""
        on_end(self._source.pull_versions(self._keys, 0), self._looked)

    def _looked(self, ended: Future[Pulled]) -> None:
        error = ended.exception()
        if error is not None:
            self.future.set_exception(error)
            return
        pulled = ended.result()
        lowest = int(pulled.lowest[self._moving].min(initial=np.iinfo(np.int64).max))
        highest = int(pulled.highest[self._moving].max(initial=0))
        if lowest >= highest:  # All of one version; or there is nothing that has versions.
            self.future.set_result((highest, pulled.values))
        elif self._overdue is not None:
            self.future.set_exception(self._overdue)
        else:
            self._target = highest + self._tries
            self._tries += 1
            on_end(self._source.pull_many(self._keys, self._target, exact=True), self._came)

    def _came(self, ended: Future[list[Array]]) -> None:
        error = ended.exception()
        if error is None:
            self.future.set_result((self._target, ended.result()))
        elif isinstance(error, StoreTimeoutError):
            self._overdue = error  # Perhaps nobody pushes any more: then all are at one version by now.
            self.begin()
        elif isinstance(error, StorePassedError) and self._tries < TRIES:
            self.begin()
        else:
            self.future.set_exception(error)
