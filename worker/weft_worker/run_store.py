"""What a run needs of its job's store, whoever keeps the values: shards, or this worker itself."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from weft_kvstore.arrays import Array
from weft_kvstore.store import ClientStatistics, StepOutcome


class Readable(Protocol):
    """What reads parameters: a store, or what stands in its place."""

    def pull(
        self, key: str, version: int, ids: Array | None = None, *, settled: bool = False, state: bool = False
    ) -> Future[Any]:
        """The key's value once `version` updates have been applied, a new array; with `state` the rule's arrays by
        name. Of a table the rows of `ids` (n) int64, those of negative ids zeros. In async it waits for this slot's
        steps alone, unless `settled`."""


class RunStore(Readable, Protocol):
    """The calls that a run makes: of a `ShardedStore`, a `LocalUpdateStore` over it, or an `OwnStore`."""

    def push(self, key: str, step: int, gradient: Array, ids: Array | None = None) -> Future[None]:
        """Adds this slot's gradient of `step`: of a table a row for each id, of which those of one id are summed and
        those of negative ids dropped. Arrays are kept until the future ends."""

    def set(self, key: str, version: int, value: Array, ids: Array | None = None) -> Future[None]:
        """Makes this the key's value at that version, which has not passed; version 0 is for keys that have none."""

    def barrier(self, step: int, nothing: Sequence[str]) -> Future[StepOutcome | None]:
        """Tells every shard that this slot has sent all of `step` and has nothing for the keys named. Where the job's
        steps are committed, it waits for every slot's barrier, and says what all agree on."""

    def statistics(self) -> ClientStatistics:
        """Counts of this moment."""

    def close(self) -> None:
        """Fails what is open."""
