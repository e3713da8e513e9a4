"""The store of a job whose keys shards keep, as a run calls it: by the names of keys, its calls checked."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from weft_kvstore.arrays import Array
from weft_kvstore.client.agreement import BarrierOperation
from weft_kvstore.client.plan import Keys
from weft_kvstore.client.store_client import Store
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.library.calls import KeyCall
from weft_kvstore.library.row_calls import RowCall
from weft_kvstore.store import ClientStatistics, Pulled, StepOutcome
from weft_kvstore.wire.messages import Reading


class ShardedStore:
    """Implements `RunStore` for a job whose keys shards keep, other processes or one in this one. Calls of keys that
    are no tables take a list of them too, with an array for each: in one message."""

    def __init__(self, store: Store, description: StoreDescription, slot: int) -> None:
        self.store = store
        self._keys = Keys(description, slot, by_name=True)
        self._commits = description.commit is not None

    def push(self, key: str | Sequence[str], step: int, gradient: Any, ids: Array | None = None) -> Future[None]:
        return self._begin("push", key, step, gradient, ids)

    def pull(
        self,
        key: str | Sequence[str],
        version: int,
        ids: Array | None = None,
        *,
        settled: bool = False,
        state: bool = False,
        out: Any = None,
    ) -> Future[Any]:
        """In `out`, where it is given, C-contiguous arrays that may be written until the future ends."""
        reading = Reading.SETTLED if settled else Reading.OWN
        return self._begin("pull_state" if state else "pull", key, version, None, ids, out=out, reading=reading)

    def pull_settled(self, keys: Sequence[str], version: int) -> Future[Pulled]:
        """Values that have seen so many steps of every slot, with the versions that they are at."""
        pull = KeyCall(self._keys, self.store, "pull", self._keys.key_list(keys, "pull"))
        return pull.begin([version] * len(keys), [], reading=Reading.SETTLED, with_versions=True)

    def pushpull(
        self, keys: Sequence[str], step: int, gradients: Sequence[Array], *, out: Sequence[Array] | None = None
    ) -> Future[list[Array]]:
        """Gradients of `step`, and the values that have seen them, in one message, which ends with these."""
        return self._begin("pushpull", keys, step, gradients, out=out)

    def set(self, key: str, version: int, value: Array, ids: Array | None = None) -> Future[None]:
        return self._begin("set", key, version, value, ids)

    def _begin(
        self,
        call: str,
        key: str | Sequence[str],
        number: int,
        values: Any,
        ids: Array | None = None,
        *,
        out: Any = None,
        reading: Reading = Reading.OWN,
    ) -> Future[Any]:
        """Raises StoreRefusedError for arrays and ids that do not fit."""
        made: KeyCall | RowCall
        if ids is None:
            keys = self._keys.key_list(key, call, pushes=call.startswith("push"))
            made = KeyCall(self._keys, self.store, call, keys, values, out=out)
        else:
            made = RowCall(self._keys, self.store, f"{call}_rows", key, ids, values)
        return made.begin([number] * len(made.keys.names), made.arrays, reading=reading)

    def barrier(self, step: int, nothing: Sequence[str]) -> Future[StepOutcome | None]:
        indices = [self._keys.index_of(name, "barrier") for name in nothing]
        return self.store.submit(BarrierOperation(step, indices, commits=self._commits))

    def buffers(self, key: str) -> tuple[Array, Array]:
        """The store's own arrays for a key's gradient and value: see `ClientMemory`."""
        index, memory = self._keys.index_of(key, "buffers"), self.store.memory
        return memory.gradient(index), memory.value(index)

    def statistics(self) -> ClientStatistics:
        return self.store.statistics()

    def close(self) -> None:
        self.store.close()
