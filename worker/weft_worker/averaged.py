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

    def pull(
        self, key: str, version: int, ids: Array | None = None, *, settled: bool = False, state: bool = False
    ) -> Future[Any]:
        value = self._store.pull(key, version, ids, settled=settled, state=state)
        if state or key not in self._averaged:
            return value
        both = [value, self._store.pull(key, version, ids, settled=settled, state=True)]
        return joined(both, lambda found: found[0] + found[1][AVERAGE])  # The weight, and how far its average is ahead.
