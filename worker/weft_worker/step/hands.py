"""What carries out runs of plans, the same for all of a job's runs on this worker."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from weft_kernels.kernel import Array
from weft_kvstore.client.calls import StoreCalls
from weft_kvstore.store import Store
from weft_worker.device import CpuDevice, Device
from weft_worker.engine.face import Engine
from weft_worker.engine.work import Variable
from weft_worker.own_values import OwnStore


class KeysThere(Protocol):
    """Keys whose values are kept in the device's memory, and need not come from the host."""

    @property
    def keys_there(self) -> Collection[str]: ...

    def pull_there(self, key: str, version: int) -> Future[Array]:
        """One of those keys' value at `version`, a copy on the device; as `Store.pull`."""


@dataclass(frozen=True, slots=True, eq=False)
class Own:
    """The values of a job without shards, which the step itself reads and updates. Work that updates them writes
    `turn`, work that takes them reads it."""

    store: OwnStore
    turn: Variable


@dataclass(frozen=True, slots=True, eq=False)
class Hands:
    """`store` carries out communication, `device` computes; the values of `there` are on the device already,
    and dense keys are of `own` where there is one.

    `checkpoint` is called between the turns of a graph's loops, and raises once the run is over.
    """

    engine: Engine
    store: Store
    device: Device = field(default_factory=CpuDevice)
    there: KeysThere | None = None
    own: Own | None = None
    checkpoint: Callable[[], None] | None = None

    @property
    def many(self) -> StoreCalls | None:
        """The store, where it takes many keys in one call."""
        return self.store if isinstance(self.store, StoreCalls) else None
