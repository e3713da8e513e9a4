"""The store of a job without shards: its one worker keeps the values itself, and no message is sent.

A step reads the arrays that the rule writes: `OwnStore.value` hands them out as they are, and `OwnStore.update` writes
them in place once the step has computed all. The engine keeps the two apart; see `weft_worker.step.inline`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import msgspec
import numpy as np

from weft_graph.program import Update
from weft_kvstore.arrays import Array
from weft_kvstore.bucket.steps import JobFailedError
from weft_kvstore.description.check import rule_of
from weft_kvstore.description.records import KeyDescription, Mode, StoreDescription
from weft_kvstore.errors import StoreError, StoreLostError, StoreRefusedError
from weft_kvstore.futures import OtherThread, finished
from weft_kvstore.local import LocalStore
from weft_kvstore.shard.snapshot import Captured, MissedError, all_captured
from weft_kvstore.sharding import slices_of
from weft_kvstore.snapshot_files import UPDATES, VALUE, CapturedArray, Snapshot, SnapshotReader, captured_array
from weft_kvstore.store import ClientStatistics, StepOutcome
from weft_worker.device import CPU, CpuDevice, Device
from weft_worker.local_keys import AdjacentKeys, LocalKey, hyper_of_key, on_host, updating_on
from weft_worker.own_tables import OwnTables
from weft_worker.patience import result_of
from weft_worker.sharded_store import ShardedStore
from weft_worker.upload import Upload

TIMEOUT_S: Final = 120.0
"""For the first values to be made."""


def has_own_values(description: StoreDescription) -> bool:
    """Whether `OwnStore` can keep this job's dense keys. Where steps are committed or each slot goes its own way, the
    store's state machine decides what becomes of a step, and keeps them."""
    alone = not description.shards and description.slots == 1
    return alone and description.mode is Mode.SYNC and description.commit is None


class OwnStore:
    """Implements `RunStore` for one slot: dense keys lie on `device` where the rule runs there, tables on the host.

    `value`, `rows` and `update` are for the engine's work, within the device's `use`. Every other call may come from
    any thread. What is pulled is a copy, and newer where its version has passed.
    """

    def __init__(
        self, description: StoreDescription, device: Device | None = None, snapshot: Snapshot | None = None
    ) -> None:
        """Goes on from a `snapshot`, where there is one. Raises SnapshotError."""
        self._device = device or CpuDevice()
        self._dense = tuple(key for key in description.keys if not key.rows)
        self._slice_bytes = description.slice_bytes
        dense = self._dense
        tables = tuple(key for key in description.keys if key.rows)
        updated = {key.key: key for key in dense if key.update is Update.RULE and key.slots}
        rule = rule_of(description)
        # Averages are kept by the host's rule alone.
        self._updating = (
            updating_on(self._device, description, rule, updated.values())
            if description.average is None
            else on_host(rule)
        )
        self._is_there = self._updating.device.name == self._device.name
        """Whether the rule runs where the run computes."""
        self._ruled = {name: LocalKey(key, self._updating, description) for name, key in updated.items()}
        self._adjacent = self._adjacent_of(updated.values(), description)
        self._others: dict[str, Array] = {}
        """Keys that no rule updates, on the device."""
        self._values: dict[str, Array] = {}
        """What `value` gave, of keys whose array is always the same."""
        self._names = frozenset(key.key for key in dense)
        idle = tuple(msgspec.structs.replace(key, slots=()) for key in dense)
        self._first: ShardedStore | None = None
        """Makes the first values, or is given them; None once they are taken over."""
        if idle:
            first = msgspec.structs.replace(description, keys=idle)
            self._first = ShardedStore(LocalStore(first), first, 0)
        self._version = 0
        self._to_set: dict[int, dict[str, Array]] = {}
        self._waits: list[tuple[int, str, Future[Any], Callable[[], Any]]] = []
        self._capture: tuple[int, Callable[[Captured | MissedError], None]] | None = None
        """At which version somebody wants all that there is."""
        self._closed = False
        self._lock = threading.RLock()
        """Held while the version moves on, and while anybody asks for one."""
        there = OtherThread(self._soon, lambda: self._closed)
        self._tables = OwnTables(description, tables, snapshot, there) if tables else None
        if snapshot is not None:
            self._restore(snapshot)

    def value(self, key: str) -> Array | Upload:
        """The key's array itself, on the run's device or on its way there; read before the next `update` alone."""
        value = self._values.get(key)
        if value is None:
            self._begin()
            value = self._others[key] if key in self._others else self._ruled[key].weight
            if key in self._ruled and not self._is_there:
                return self._device.upload(value)
            self._values[key] = value
        return value

    def gradient(self, key: str) -> Array | None:
        """Where `update` wants the key's gradient to be, in the key's shape: elsewhere it is copied. None where it does
        not matter."""
        return next((keys.gradients[key] for keys in self._adjacent if key in keys.gradients), None)

    def rows(self, key: str, ids: Array, out: Array | None = None) -> Array:
        """Rows of a table, in `out` or a new array of the host's: to be read before the next `update` alone."""
        with self._lock:
            return self._of_tables.rows(key, ids, out)

    def update(
        self, step: int, gradients: Mapping[str, Array], rows: Mapping[str, tuple[Array, Array]] = MappingProxyType({})
    ) -> None:
        """Applies a step's gradients, arrays of the run's device, which are used up; of tables ids and `rows`, arrays
        of the host's."""
        self._begin()
        with self._lock:
            if self._tables is not None:
                self._tables.update(step, rows)
            whole = [keys for keys in self._adjacent if keys.gradients.keys() <= gradients.keys()]
            together = {key for keys in whole for key in keys.gradients}
            # All are taken before any is written: one array may be the gradient of several keys.
            for keys in whole:
                keys.take(gradients)
            for key, gradient in gradients.items():
                if key not in together:
                    self._apply(key, gradient, step)
            for keys in whole:
                keys.update(step)
            for key, value in self._to_set.pop(step + 1, {}).items():
                self._put(key, value)
            self._version = step + 1
            if self._capture is not None and self._capture[0] == self._version:
                done, self._capture = self._capture[1], None
                done(self._held())
            if not self._waits:
                return
            reached = [(wait[2], _outcome(wait[3])) for wait in self._waits if wait[0] <= self._version]
            self._waits = [wait for wait in self._waits if wait[0] > self._version]
        for future, outcome in reached:
            _end(future, outcome)

    def capture(self, step: int, done: Callable[[Captured | MissedError], None], *, since: int | None = None) -> None:
        """Calls `done` with all values and the rule's arrays at version `step`, once they are at it; it has to be
        quick. What it is given is to be released. May be called on any thread. `since`: of tables what has changed
        since the capture at that step, if that is known."""
        with self._lock:
            if self._tables is not None:
                done = all_captured(2, done)
                self._tables.capture(step, done, since)
            if self._version > step:
                done(MissedError(f"the values are at version {self._version} already"))
            elif self._version == step:
                with self._device.use():
                    done(self._held())
            else:
                self._capture = step, done

    def pull(
        self, key: str, version: int, ids: Array | None = None, *, settled: bool = False, state: bool = False
    ) -> Future[Any]:
        first = self._first
        if version == 0 and first is not None and key in self._names and not state:
            return first.pull(key, 0)  # First values that are given are waited for there.
        if ids is not None:
            read = self._of_tables.state_rows if state else self._of_tables.rows
            return self._at(key, version, partial(read, key, ids))
        return self._at(key, version, self._ruled[key].state if state else partial(self._copy, key))

    def set(self, key: str, version: int, value: Array, ids: Array | None = None) -> Future[None]:
        with self._lock:
            if ids is not None:
                self._of_tables.set_rows(key, version, ids, value)
            elif version == 0 and self._first is not None:
                return self._first.set(key, 0, value)
            elif version <= self._version:
                raise StoreRefusedError(f"key {key!r}, version {version}: it is at {self._version}")
            else:
                self._to_set.setdefault(version, {})[key] = value.copy()
        return finished(None)

    def push(self, key: str, step: int, gradient: Array, ids: Array | None = None) -> Future[None]:
        raise StoreRefusedError(f"key {key!r}, step {step}: this worker's own values are updated")

    def barrier(self, step: int, nothing: Sequence[str]) -> Future[StepOutcome | None]:
        raise StoreRefusedError(f"barrier of step {step}: this worker's own values are updated")

    def statistics(self) -> ClientStatistics:
        return ClientStatistics() if self._tables is None else self._tables.statistics()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            waits, self._waits = self._waits, []
            capture, self._capture = self._capture, None
        if capture is not None:
            capture[1](MissedError(f"the store was closed before version {capture[0]}, at {self._version}"))
        for version, key, future, _ in waits:
            future.set_exception(StoreLostError(f"version {version} of key {key!r}: the store was closed"))
        for store in (self._first, self._tables):
            if store is not None:
                store.close()

    def _adjacent_of(self, keys: Iterable[KeyDescription], description: StoreDescription) -> list[AdjacentKeys]:
        """Keys that one call can update: on the host, by a rule whose result does not show what else it was given."""
        if not (self._updating.rule.anywhere and self._updating.device.name == self._device.name == CPU):
            return []
        alike: dict[tuple[str, str], list[KeyDescription]] = {}
        for key in keys:
            if key.size:
                alike.setdefault((key.dtype, repr(sorted(key.multipliers.items()))), []).append(key)
        return [
            AdjacentKeys.of(each, self._ruled, self._updating, hyper_of_key(each[0], self._updating, description))
            for each in alike.values()
        ]

    @property
    def _of_tables(self) -> OwnTables:
        if self._tables is None:
            raise StoreError("the job has no tables")
        return self._tables

    def _soon(self, work: Callable[[], None]) -> None:
        with self._lock:
            work()

    def _begin(self) -> None:
        """Takes over the first values, unless another thread does so meanwhile. Raises StoreError where they are not
        there in time."""
        first = self._first
        if first is None:
            return
        pulled = {key: first.pull(key, 0) for key in sorted(self._names)}
        try:
            values = {key: result_of(one, f"the first value of key {key!r}", TIMEOUT_S) for key, one in pulled.items()}
        except StoreError:
            if self._first is first:
                raise
            return  # Who has taken them over has closed it.
        with self._lock, self._device.use():
            if self._first is not first:
                return  # They may have been updated since.
            for key, value in values.items():
                if key in self._ruled:
                    self._ruled[key].begin(value)
                else:
                    self._others[key] = self._device.to_device(value)
            self._first = None
        first.close()

    def _restore(self, snapshot: Snapshot) -> None:
        with SnapshotReader(snapshot) as reader, self._device.use():
            for key in self._dense:
                size, dtype = key.size, np.dtype(key.dtype)
                value = reader.read(VALUE, key.key, 0, size, dtype).reshape(key.shape)
                if key.key in self._ruled:
                    names = self._updating.rule.state
                    state = {name: reader.read(name, key.key, 0, size, dtype) for name in names}
                    self._ruled[key.key].restore(value, state)
                else:
                    self._others[key.key] = self._device.to_device(value)
        if self._first is not None:
            self._first.close()
        self._first = None
        self._version = snapshot.step

    def _held(self) -> Captured:
        """Copies of the dense keys."""
        arrays = self._captured_arrays()
        return Captured(lambda: arrays)

    def _captured_arrays(self) -> list[CapturedArray]:
        found: list[CapturedArray] = []
        for key in self._dense:
            if not key.size:
                continue
            arrays = {VALUE: self._copy(key.key)}
            if key.key in self._ruled:
                arrays |= self._ruled[key.key].state()
            for array, values in arrays.items():
                found.append(captured_array(array, key.key, 0, values.reshape(-1)))
            made: Array = np.full(slices_of(key, self._slice_bytes).count, self._version, np.int64)
            found.append(captured_array(UPDATES, key.key, 0, made))
        return found

    def _apply(self, key: str, gradient: Array, step: int) -> None:
        if key not in self._ruled:
            self._others[key][...] = gradient  # The mean over one slot.
            return
        whole = self._device.xp.ascontiguousarray(gradient)
        if self._is_there:
            self._ruled[key].update_there(whole, step)
        else:
            self._ruled[key].update(self._device.to_host(whole), step)

    def _put(self, key: str, value: Array) -> None:
        if key in self._ruled:
            self._ruled[key].set(value)
        else:
            self._others[key][...] = self._device.to_device(value)

    def _copy(self, key: str) -> Array:
        return self._ruled[key].value() if key in self._ruled else self._device.to_host(self._others[key].copy())

    def _at(self, key: str, version: int, take: Callable[[], Any]) -> Future[Any]:
        """Ends with what `take` gives once the values are at that version."""
        self._begin()
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # Only its end ends it, so that it can always be set.
        what = f"version {version} of key {key!r}"
        with self._lock:
            if self._closed:
                future.set_exception(StoreLostError(f"{what}: the store was closed"))
            elif version > self._version:
                self._waits.append((version, key, future, take))
            else:
                with self._device.use():
                    _end(future, _outcome(take))
        return future


def _outcome(take: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """What it gives, or raises."""
    try:
        return take(), None
    except (StoreError, MemoryError, JobFailedError) as error:
        return None, error


def _end(future: Future[Any], outcome: tuple[Any, Exception | None]) -> None:
    found, error = outcome
    if error is None:
        future.set_result(found)
    else:
        future.set_exception(error)
