"""Reads several keys at one version while others push. It waits for nothing: it goes on where one of its pulls ends."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final, Protocol

import numpy as np

from weft_kvstore.arrays.array import Array
from weft_kvstore.errors import StorePassedError, StoreTimeoutError
from weft_kvstore.runtime.store_future import Driver, StoreFuture, on_end
from weft_kvstore.store import Pulled

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
