"""A store over the job's store, for a worker that updates keys itself: merged gradients come, values are handed out.

Such a key's merged gradient is pulled from the moment its own is pushed; the rule is applied on this store's own
thread, key by key as gradients arrive, never on the thread that moves bytes. What waits for what is decided by
`weft_worker.version_waits`.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import Empty, PriorityQueue
from typing import Any, Final, TypeVar

import numpy as np

from weft.api.store import gradient_key
from weft_kvstore.arrays import Array
from weft_kvstore.errors import StoreError, StoreLostError, StoreRefusedError
from weft_kvstore.futures import hand_on
from weft_kvstore.shard.snapshot import Captured, MissedError
from weft_kvstore.sharding import slices_of
from weft_kvstore.snapshot_files import UPDATES, VALUE, Part, Snapshot, SnapshotReader, part_of
from weft_kvstore.store import ClientStatistics, StepOutcome, Store
from weft_worker.device import Device
from weft_worker.local_keys import LocalKey, LocalKeys
from weft_worker.updating import Updating
from weft_worker.version_waits import Begin, End, Give, Instruction, VersionWaits

TIMEOUT_S: Final = 120.0
"""For a version of a key to come about: above the store's own deadline, whose message says which slots are missing."""

LONGEST_PAUSE_S: Final = 60.0

R = TypeVar("R")

_log = logging.getLogger("weft.worker")


@dataclass(eq=False, frozen=True, slots=True)
class _Wait:
    """What somebody waits with; `give` ends the future, or has it ended, once what it waits for is there."""

    what: str
    future: Future[Any]
    give: Callable[[], None]


class LocalUpdateStore:
    """Implements `Store` and `DeviceKeys`. `local.keys` are updated here; everything else is the store's, which it
    closes.

    At most one gradient of a key is under way: this slot contributes to a step once it has the gradient of the one
    before. So no shard can pass a version that this worker has not pulled.
    """

    def __init__(
        self,
        store: Store,
        local: LocalKeys,
        updating: Updating,
        *,
        snapshot: Snapshot | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Goes on from a `snapshot`, where there is one. Raises SnapshotError."""
        self.within = store
        self._store = store
        self._updating = updating
        self._keys = {name: LocalKey(key, updating, local.seen) for name, key in local.keys.items()}
        self._slices = {name: slices_of(key, local.seen.slice_bytes).count for name, key in local.keys.items()}
        self._priorities = {name: key.priority for name, key in local.keys.items()}
        self._versions = VersionWaits(self._keys, timeout_s)
        self._capture: _Capture | None = None
        if snapshot is not None:
            self._restore(snapshot)
        self._waits: dict[int, _Wait] = {}
        self._numbers = itertools.count()
        self._events: PriorityQueue[tuple[int, int, Callable[[], None]]] = PriorityQueue()
        self._closing = False
        self._over: str | None = None
        """Why nothing is handled any more."""
        self._lock = threading.Lock()
        """Held while an event is put, and while none may be any more."""
        self._doing = ""
        self._thread = threading.Thread(target=self._run, name="local-update", daemon=True)
        self._thread.start()

    def capture(self, step: int, done: Callable[[Captured | MissedError], None]) -> None:
        """Calls `done` with copies of the keys that this worker updates, and of the rule's arrays, at version `step`,
        once all of them have been at it; it has to be quick. May be called on any thread."""

        def begin() -> None:
            self._capture = _Capture(step, done, dict.fromkeys(self._keys))
            for key in self._keys:
                self._take(key)

        with self._lock:
            if self._over is None:
                self._put_event(min(self._priorities.values()), begin)

    @property
    def device(self) -> Device:
        """Where values are kept."""
        return self._updating.device

    @property
    def on_device(self) -> Collection[str]:
        return self._keys.keys()

    def pull_on_device(self, key: str, version: int) -> Future[Array]:
        return self._value(key, version, self._keys[key].value_there)

    def push(self, key: str, step: int, gradient: Array, ids: Array | None = None) -> Future[None]:
        if key not in self._keys:
            return self._store.push(key, step, gradient, ids)
        if self._versions.version(key) == step:  # Another thread changes it, and not before this push.
            return self._push(key, step, gradient)
        return self._once_at([key], step, lambda: self._push(key, step, gradient))

    def pull(
        self, key: str, version: int, ids: Array | None = None, *, settled: bool = False, state: bool = False
    ) -> Future[Any]:
        if key not in self._keys:
            return self._store.pull(key, version, ids, settled=settled, state=state)
        return self._value(key, version, self._keys[key].state if state else self._keys[key].value)

    def set(self, key: str, version: int, value: Array, ids: Array | None = None) -> Future[None]:
        if key in self._keys and version > 0:
            where = f"key {key!r}, version {version}"
            raise StoreRefusedError(f"{where}: every worker updates it by itself; it cannot be set while the job runs")
        return self._store.set(key, version, value, ids)

    def barrier(self, step: int, nothing: Sequence[str]) -> Future[StepOutcome | None]:
        """A key that this worker updates is declared once its version `step` is there: see the class."""
        local = [key for key in nothing if key in self._keys]
        if not local:
            return self._store.barrier(step, nothing)
        declared = [gradient_key(key) if key in self._keys else key for key in nothing]

        def declare() -> Future[StepOutcome | None]:
            for key in local:
                self._ask_gradient(key, step)
            return self._store.barrier(step, declared)

        return self._once_at(local, step, declare)

    def statistics(self) -> ClientStatistics:
        return self._store.statistics()

    def close(self) -> None:
        self._store.close()
        with self._lock:
            self._closing = True
            self._events.put((0, next(self._numbers), lambda: None))
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _value(self, key: str, version: int, take: Callable[[], Any]) -> Future[Any]:
        """Ends with what `take` gives at that version of the key."""
        future: Future[Any] = Future()
        self._wait([key], version, future, lambda: future.set_result(take()))
        return future

    def _once_at(self, keys: Sequence[str], version: int, call: Callable[[], Future[R]]) -> Future[R]:
        """Ends as the future does that `call` returns, which is called once the keys are at the version."""
        future: Future[R] = Future()
        self._wait(keys, version, future, lambda: call().add_done_callback(partial(hand_on, future)))
        return future

    def _wait(self, keys: Sequence[str], version: int, future: Future[Any], give: Callable[[], None]) -> None:
        future.set_running_or_notify_cancel()  # Only its end ends it, so that it can always be set.
        number, shown = next(self._numbers), ", ".join(map(repr, keys))
        wait = _Wait(f"version {version} of key {shown}, which this worker updates", future, give)

        def want() -> None:
            self._carry_out(self._versions.want(number, keys, version, time.monotonic()))

        with self._lock:
            if self._over is None:
                self._waits[number] = wait
                self._put_event(min(self._priorities[key] for key in keys), want)
                return
        future.set_exception(StoreLostError(f"{wait.what}: {self._over}"))

    def _put(self, key: str, event: Callable[[], None]) -> None:
        """Has the thread handle an event: of urgent keys first, of one key in order."""
        with self._lock:
            if self._over is None:
                self._put_event(self._priorities[key], event)

    def _put_event(self, priority: int, event: Callable[[], None]) -> None:
        self._events.put((priority, next(self._numbers), event))

    def _push(self, key: str, step: int, gradient: Array) -> Future[None]:
        self._ask_gradient(key, step)
        return self._store.push(gradient_key(key), step, gradient)

    def _ask_gradient(self, key: str, step: int) -> None:
        future = self._store.pull(gradient_key(key), step + 1)
        future.add_done_callback(lambda ended: self._put(key, lambda: self._gradient_came(key, step, ended)))

    def _run(self) -> None:
        reason = "the store was closed"
        try:
            while not self._closing:
                self._round()
        except Exception as error:  # noqa: BLE001  # the thread's outermost frame: whoever waits must hear of it
            reason = f"{self._doing}: {type(error).__name__}: {error}"
            _log.exception("%s", self._doing)
        with self._lock:
            self._over = reason
            waits, self._waits = self._waits, {}
        for wait in (each for each in waits.values() if not each.future.done()):
            wait.future.set_exception(StoreLostError(f"{wait.what}: {reason}"))

    def _round(self) -> None:
        self._doing = "the thread that updates has failed"
        pause_s = min(self._versions.due() - time.monotonic(), LONGEST_PAUSE_S)
        try:
            event = self._events.get(timeout=max(pause_s, 0.0))[2]
        except Empty:
            event = None
        # Not while it waits: what another thread captures as a graph may hold nobody else's work.
        with self._updating.device.use():
            if event is not None:
                event()
            self._carry_out(self._versions.tick(time.monotonic()))

    def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Begin(key):
                    self._begin(key)
                case Give(number):
                    self._waits[number].give()  # Should this raise, the wait is still among those that are ended.
                    del self._waits[number]
                case End(number, error):
                    self._waits.pop(number).future.set_exception(error)

    def _begin(self, key: str) -> None:
        future = self._store.pull(key, 0)
        future.add_done_callback(lambda ended: self._put(key, lambda: self._first_came(key, ended)))

    def _first_came(self, key: str, ended: Future[Array]) -> None:
        error = _error_of(key, ended)
        if error is None:
            self._keys[key].begin(ended.result())
        self._carry_out(self._versions.reached(key, 0) if error is None else self._versions.failed(key, error))

    def _gradient_came(self, key: str, step: int, ended: Future[Array]) -> None:
        """The merged gradient of `step` is there, or will not come."""
        error = _error_of(key, ended) or self._versions.misfit(key, step)
        if error is None:
            self._doing = f"rule {self._updating.rule.name!r} failed on key {key!r}, step {step}"
            self._keys[key].update(ended.result(), step)
            if self._capture is not None:
                self._take(key, version=step + 1)
        self._carry_out(self._versions.reached(key, step + 1) if error is None else self._versions.failed(key, error))

    def _take(self, key: str, version: int | None = None) -> None:
        """Copies a key that is at the version of the capture; it is at `version`, or at its own."""
        capture, version = self._capture, self._versions.version(key) if version is None else version
        if capture is None or version is None or version < capture.step or capture.parts.get(key) is not None:
            return
        if version > capture.step:
            self._capture = None
            capture.done(MissedError(f"key {key!r} is at version {version} already"))
            return
        of = self._keys[key]
        updates: Array = np.full(self._slices[key], version, np.int64)
        arrays = {VALUE: of.value(), **of.state(), UPDATES: updates}
        capture.parts[key] = [part_of(name, key, 0, array.reshape(-1)) for name, array in arrays.items()]
        if all(parts is not None for parts in capture.parts.values()):
            self._capture = None
            capture.done(Captured(lambda: [part for parts in capture.parts.values() for part in parts or ()]))

    def _restore(self, snapshot: Snapshot) -> None:
        with SnapshotReader(snapshot) as reader, self._updating.device.use():
            for name, of in self._keys.items():
                value, *state = (
                    reader.read(array, name, 0, of.size, of.dtype) for array in (VALUE, *self._updating.rule.state)
                )
                of.restore(value.reshape(of.shape), dict(zip(self._updating.rule.state, state, strict=True)))
                self._versions.begin_at(name, snapshot.step)


@dataclass(eq=False, frozen=True, slots=True)
class _Capture:
    """What somebody wants of all keys at version `step`, as far as it is there."""

    step: int
    done: Callable[[Captured | MissedError], None]
    parts: dict[str, list[Part] | None]


def _error_of(key: str, ended: Future[Any]) -> StoreError | None:
    """Why the store has not brought what was asked for."""
    if ended.cancelled():
        return StoreLostError(f"key {key!r}: the store gave it up")
    error = ended.exception()
    return error if error is None or isinstance(error, StoreError) else StoreError(f"key {key!r}: {error}")
