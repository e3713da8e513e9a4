"""What carries out runs of plans, the same for all of a job's runs on this worker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from weft_kernels.kernel import Array
from weft_kvstore.client.calls import StoreCalls
from weft_kvstore.step_outcome import StepOutcome
from weft_kvstore.store import BufferStore, Store
from weft_worker.device import CpuDevice, Device
from weft_worker.engine.engine import Engine
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


@dataclass(slots=True, eq=False)
class Shared:
    """The values on a job's shards, where one call pushes a step's gradients and pulls the next step's values. Work
    that sends or fetches any writes `turn`. `buffers` is the same store as `store`, by its other protocol.

    `_ahead` has for each key the version that is on its way, the call that brings it, and its number there. A key's
    gradient array is the store's until that call has ended.
    """

    store: StoreCalls
    buffers: BufferStore
    turn: Variable
    _ahead: dict[str, tuple[int, Future[list[Array]], int]] = field(default_factory=dict)
    _pushed: list[Future[None]] = field(default_factory=list)

    def values(self, keys: Sequence[str], version: int) -> list[Array]:
        """The keys' values at that version: waits for them. They are the store's arrays, and hold until the keys are
        sent."""
        for key in keys:
            coming = self._ahead.get(key)
            if coming is not None and coming[0] != version:
                self._await(key)
        missing = [key for key in keys if key not in self._ahead]
        if missing:
            out = [self.buffers.value_buffer(key) for key in missing]
            self._expect(missing, version, self.store.pull(missing, version, out=out))
        found = [self._ahead.pop(key) for key in keys]
        return [future.result()[number] for _, future, number in found]

    def gradient(self, key: str) -> Array:
        """Where the key's gradient is sent from."""
        return self.buffers.gradient_buffer(key)

    def send(
        self, keys: Sequence[str], step: int, gradients: Sequence[Array], *, goes_on: bool, in_place: bool
    ) -> Future[Any]:
        """Pushes gradients; where the job `goes_on`, also pulls what they make. `in_place`: the values that the keys
        have are read no more. Ends once they are there, or the shards have the gradients."""
        arrays = []
        for key, gradient in zip(keys, gradients, strict=True):
            self._await(key)
            array = self.gradient(key)
            if gradient is not array:
                np.copyto(array, gradient, casting="no")
            arrays.append(array)
        if not goes_on:
            pushed = self.store.push(keys, step, arrays)
            self._pushed.append(pushed)
            return pushed
        out = [self.buffers.value_buffer(key) for key in keys] if in_place else None
        future = self.store.pushpull(self.store.key_set(keys), step, arrays, out=out)
        self._expect(keys, step + 1, future)
        return future

    def end(self, step: int) -> StepOutcome | None:
        """Waits until every shard has all that was sent of the last step."""
        for pushed in self._pushed:
            pushed.result()
        return self.store.barrier(step, []).result()

    def _expect(self, keys: Sequence[str], version: int, future: Future[Any]) -> None:
        self._ahead.update((key, (version, future, number)) for number, key in enumerate(keys))

    def _await(self, key: str) -> None:
        """Waits for what is on its way of a key, which nobody reads."""
        coming = self._ahead.pop(key, None)
        if coming is not None:
            coming[1].result()


@dataclass(frozen=True, slots=True, eq=False)
class Hands:
    """`store` carries out communication, `device` computes; the values of `there` are on the device already,
    and dense keys are of `own` where there is one, or of `shared`.

    `checkpoint` is called between the turns of a graph's loops, and raises once the run is over.
    """

    engine: Engine
    store: Store
    device: Device = field(default_factory=CpuDevice)
    there: KeysThere | None = None
    own: Own | None = None
    shared: Shared | None = None
    checkpoint: Callable[[], None] | None = None

    @property
    def many(self) -> StoreCalls | None:
        """The store, where it takes many keys in one call."""
        return self.store if isinstance(self.store, StoreCalls) else None
