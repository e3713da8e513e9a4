"""The store as a library: push gradients, pull parameters, from a plain Python program."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias
from weakref import WeakSet

import msgspec
import numpy as np

from weft_graph.rules.built_in import rule_name
from weft_kvstore.arrays import Array
from weft_kvstore.client.calls import StoreCalls
from weft_kvstore.client.store_client import StoreClient
from weft_kvstore.description.form import BARRIER_KEY, UserKey, read_description
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.encryption import CurveKeys, read_curve_keys
from weft_kvstore.errors import StoreError, StoreRefusedError
from weft_kvstore.futures import joined
from weft_kvstore.library.arrays import ArrayTraffic
from weft_kvstore.library.calls import RowCalls
from weft_kvstore.library.key_registry import KeyRegistry
from weft_kvstore.library.steps import Barriers, SlotSteps, await_shards, check_number
from weft_kvstore.local.local_store import LocalStore
from weft_kvstore.process import OwnProcess
from weft_kvstore.rows.memory import TablePlace
from weft_kvstore.settings import LinkSettings
from weft_kvstore.step_outcome import StepOutcome
from weft_kvstore.store import ClientStatistics

Described: TypeAlias = StoreDescription | str | os.PathLike[str]
"""A description, or the path of the file that has it."""

DEFAULTS = LinkSettings()


class KVStore(RowCalls):
    """A worker's connection to a store, as one slot. Made by `connect` (shards are processes) or `local` (this
    process).

    Calls return a future at once. Wrong arguments raise StoreRefusedError; other errors end the future, which has a
    deadline. A call takes one key, or a list of keys with a list of values; its future ends when all are done. Arrays
    are NumPy's, or any that support DLPack or the CUDA array interface. Do not write to an array that was passed in
    until the future has ended.

    Steps are counted for each key. A push is the key's next step. A pull waits for the steps that this slot has pushed:
    in sync mode from all slots, in async mode from this one. `step=` and `version=` override this; version v includes
    steps 0 to v - 1. A rejected push keeps its step: push again with that `step=`, or later pulls, pushes and
    `end_step` of the key fail.

    Calls for one key take effect in order. Threads may share a store; a forked process has to connect again. Callbacks
    of futures run on the store's thread: they may start calls but must not wait for them.
    """

    def __init__(self, store: StoreCalls, description: StoreDescription, slot: int, *, step: int = 0) -> None:
        """Over any store that is slot `slot` of this description; `step` is the first to be counted."""
        self.description = description
        self.slot = slot
        self._process = OwnProcess()
        registry, traffic = KeyRegistry(description, slot), ArrayTraffic()
        super().__init__(store, registry, SlotSteps(store, registry, traffic, step), traffic)
        self._barriers = Barriers(store)
        self._changing = threading.Lock()
        """Held for a moment, while a change of a hyper-parameter is noted."""
        _stores.add(self)

    @classmethod
    def connect(
        cls,
        description: Described,
        slot: int,
        *,
        wait_s: float = 60.0,
        timeout_s: float | None = None,
        step: int = 0,
        incarnation: int = 1,
        settings: LinkSettings = DEFAULTS,
        endpoints: Sequence[str] | None = None,
        curve_keys: CurveKeys | str | os.PathLike[str] | None = None,
    ) -> KVStore:
        """Slot `slot` of a store whose shards are processes: `python -m weft_kvstore --description FILE --shard N`.

        Waits up to `wait_s` seconds for every shard; 0 does not wait. `timeout_s` is the deadline of every future, 60
        by default. A process that replaces one that died gives a higher `incarnation`, and the `step` to continue at.
        `endpoints` replace those of the description. `curve_keys` are this process's keys, or their file, if links are
        encrypted. Raises OSError, DescriptionError, ValueError for a wrong slot or keys, StoreError with the shard.
        """
        described = _read(description)
        slot = int(slot) if isinstance(slot, np.integer) else slot
        step, incarnation = _whole("step", step), _whole("incarnation", incarnation)
        link = _settings(settings, timeout_s)
        keys = (
            curve_keys if curve_keys is None or isinstance(curve_keys, CurveKeys) else read_curve_keys(Path(curve_keys))
        )
        client = StoreClient(
            described, slot, incarnation=incarnation, settings=link, endpoints=endpoints, curve_keys=keys
        )
        try:
            here = described if endpoints is None else msgspec.structs.replace(described, shards=tuple(endpoints))
            await_shards(client, here, slot, wait_s)
            return cls(client, described, slot, step=step)
        except BaseException:
            client.close()
            raise

    @classmethod
    def local(
        cls,
        description: Described,
        *,
        timeout_s: float | None = None,
        step: int = 0,
        settings: LinkSettings = DEFAULTS,
        tables: TablePlace | None = None,
    ) -> KVStore:
        """Slot 0 of a store within this process: no shards, no sockets, the same bits. `at_slot` gives the others, for
        threads. `step`: the first to be counted, where the store is restored. `tables` says from what size on rows of
        tables lie in a file. Raises OSError and DescriptionError."""
        described = _read(description)
        step = _whole("step", step)
        store = LocalStore(described, settings=_settings(settings, timeout_s), tables=tables)
        return cls(store, described, 0, step=step)

    def at_slot(self, slot: int, *, step: int = 0) -> KVStore:
        """Another slot of a local store, which counts its own steps, from `step` on. Closing it closes nothing. Raises
        ValueError."""
        self._process.check()
        if not isinstance(self._store, LocalStore):
            raise StoreError(f"this store is connected as slot {self.slot}; slot {slot} takes a `connect` of its own")
        slot = int(slot) if isinstance(slot, np.integer) else slot
        return KVStore(self._store.at_slot(slot), self.description, slot, step=_whole("step", step))

    @property
    def keys(self) -> tuple[UserKey, ...]:
        """All keys, in the description's order."""
        return self._registry.keys

    @property
    def slots(self) -> int:
        """How many slots the store has."""
        return self.description.slots

    @property
    def rule(self) -> str:
        """What the rule is called."""
        return rule_name(self.description.rule)

    def hyper(self, key: UserKey, *, step: int | None = None) -> Mapping[str, float]:
        """The rule's numbers for the key's update of a step, schedules and multipliers included, and what this object
        has changed by `set_hyper`; of the next step of this slot where it is left out."""
        return self._registry.hyper(key, self.steps(key) if step is None else step)

    def set_hyper(self, name: str, value: float, *, step: int | None = None, key: UserKey | None = None) -> Future[int]:
        """Changes a hyper-parameter, such as `lr`, from a step on, for all keys or one. The result is the step.

        It replaces the number or schedule on all shards. `step` is the first that no slot has begun, by default; an
        earlier one is rejected. Call it from one slot: of several calls at once, all but one fail.
        """
        of = None if key is None else self._registry.known(key, "set_hyper").key
        number = self._registry.checked_number(name, value, key)
        check_number(step, f"{self._registry.call('set_hyper')}: step")

        def changed(begun: list[int]) -> int:
            with self._changing:
                self._registry.changed(of, begun[0], {name: number})
            return begun[0]

        return joined([self._store.set_hyper({name: number}, step=step, key=of)], changed)

    def steps(self, key: UserKey) -> int:
        """The number of steps of this key that this slot has begun, which is the version that its pulls ask for."""
        return self._steps.of(self._registry.known(key, "steps").key)

    def gradient_buffer(self, key: UserKey) -> Array:
        """An array for a key's gradients, the same one at each call. Shards on this host read it without a copy.

        Do not write to it before the push's future ends, which is when every slot has pushed the step and the shard has
        read it. If one thread has several slots, push from all of them before waiting."""
        return self._store.gradient_buffer(self._registry.buffered(key, "gradient_buffer"))

    def value_buffer(self, key: UserKey) -> Array:
        """An array for a key's value, the same one at each call, to pass as `out` of a pull."""
        return self._store.value_buffer(self._registry.buffered(key, "value_buffer"))

    def end_step(self, step: int | None = None) -> Future[StepOutcome | None]:
        """Tells the shards that this slot has pushed all it has for the steps up to `step`, the last begun by default.

        Needed if a slot skips keys, and after each step with `commit`: then the result has the gradient's norm, and
        whether it was finite.
        """

        def end(ended: Sequence[tuple[int, list[str]]]) -> Future[StepOutcome | None]:
            barriers = [self._store.barrier(one, nothing) for one, nothing in ended]
            return joined(barriers, lambda outcomes: outcomes[-1])

        return self._steps.end(step, end)

    def barrier(self) -> Future[None]:
        """Ends when every slot has called it. With `commit` it is `end_step`."""
        where = self._registry.call("barrier")
        if self.description.commit is not None:
            return joined([self.end_step()], lambda _: None)
        if all(key.key != BARRIER_KEY for key in self.description.keys):
            raise StoreRefusedError(f"{where}: the store was described with barrier = false")
        return self._barriers.meet()

    def statistics(self) -> ClientStatistics:
        """Counters of bytes, frames, rows and queues, in total and for each link."""
        self._process.check()
        return self._store.statistics()

    def close(self) -> None:
        """Fails open calls and releases sockets and threads. Idempotent."""
        if self._process.is_here:
            self._traffic.close()
            self._store.close()

    def __enter__(self) -> KVStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_stores: WeakSet[KVStore] = WeakSet()


class _Elsewhere:
    """The calls of a store in a forked child, where none can be made: locks may be held for ever."""

    def __init__(self, process: OwnProcess) -> None:
        self._process = process

    def __getattr__(self, name: str) -> Any:
        """Raises StoreError."""
        self._process.check()
        raise AttributeError(name)


def _leave_behind() -> None:
    for store in _stores:
        elsewhere: Any = _Elsewhere(store._process)
        store._registry = store._steps = store._pushed = store._pulled = elsewhere


os.register_at_fork(after_in_child=_leave_behind)


def _read(description: Described) -> StoreDescription:
    return description if isinstance(description, StoreDescription) else read_description(description)


def _whole(name: str, number: Any) -> int:
    """A number that counts, NumPy's too. Raises ValueError for another."""
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number < 1 << 63:
        raise ValueError(f"{name}: a whole number from 0 to 2^63 - 1, not {number!r}")
    return int(number)


def _settings(settings: LinkSettings, timeout_s: float | None) -> LinkSettings:
    return settings if timeout_s is None else replace(settings, request_timeout_s=timeout_s)
