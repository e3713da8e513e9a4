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
        """As `Store.pull`."""


class RunStore(Readable, Protocol):
    """The calls of `weft_kvstore`'s `Store` that a run makes, which mean the same: that one, `LocalUpdateStore` over
    it, or `OwnStore`."""

    def push(self, key: str, step: int, gradient: Array, ids: Array | None = None) -> Future[None]:
        """Adds this slot's gradient of `step`."""

    def set(self, key: str, version: int, value: Array, ids: Array | None = None) -> Future[None]:
        """Makes this the key's value at that version."""

    def barrier(self, step: int, nothing: Sequence[str]) -> Future[StepOutcome | None]:
        """Tells every shard that this slot has sent all of `step` and has nothing for the keys named."""

    def statistics(self) -> ClientStatistics:
        """Counts of this moment."""

    def close(self) -> None:
        """Fails what is open."""
