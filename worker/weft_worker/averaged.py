"""The store as it is read where the averages of weights stand in their place."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from weft_graph.program import Update
from weft_kernels.averaging import AVERAGE
from weft_kvstore.arrays import Array
from weft_kvstore.description.records import KeyDescription
from weft_kvstore.futures import joined
from weft_kvstore.store import Readable, Store


class AveragedStore(Readable):
    """Reads of `store`: of a key that the rule updates its average, of any other the value. Both parts are of one
    version, which in sync stands until this slot goes on."""

    def __init__(self, store: Store, keys: Mapping[str, KeyDescription]) -> None:
        self._store = store
        self._averaged = frozenset(name for name, key in keys.items() if key.update is Update.RULE and key.slots)

    def pull(self, key: str, version: int, *, settled: bool = False) -> Future[Array]:
        value = self._store.pull(key, version, settled=settled)
        if key not in self._averaged:
            return value
        return _average(value, self._store.pull_state(key, version, settled=settled))

    def pull_rows(self, key: str, ids: Array, version: int, *, settled: bool = False) -> Future[Array]:
        rows = self._store.pull_rows(key, ids, version, settled=settled)
        if key not in self._averaged:
            return rows
        return _average(rows, self._store.pull_state_rows(key, ids, version, settled=settled))


def _average(value: Future[Array], state: Future[Mapping[str, Array]]) -> Future[Array]:
    """Ends with the weight and how far its average is ahead, added up."""
    both: list[Future[Any]] = [value, state]
    return joined(both, lambda found: found[0] + found[1][AVERAGE])
