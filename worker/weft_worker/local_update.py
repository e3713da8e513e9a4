"""A store over the job's store, for a worker that updates keys itself: merged gradients come, values are handed out.

Such a key's merged gradient is pulled from the moment its own is pushed; the rule is applied on this store's own
thread, key by key as gradients arrive, never on the thread that moves bytes. Whoever needs a version of a key waits
until the key is at it; what is done then is done on that thread, before the next update.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, PriorityQueue
from typing import Any, Final

import numpy as np

from weft.api.store import gradient_key
from weft_kvstore.arrays import Array
from weft_kvstore.description.records import KeyDescription
from weft_kvstore.errors import StoreError, StoreLostError, StoreRefusedError, StoreTimeoutError
from weft_kvstore.futures import StoreFuture, error_of, joined, on_end
from weft_kvstore.shard.snapshot import Captured, MissedError
from weft_kvstore.sharding import slices_of
from weft_kvstore.snapshot_files import UPDATES, VALUE, CapturedArray, Snapshot, SnapshotReader, captured_array
from weft_kvstore.store import ClientStatistics, StepOutcome
from weft_worker.device import Device
from weft_worker.local_keys import LocalKey, LocalKeys, Updating
from weft_worker.run_store import RunStore

TIMEOUT_S: Final = 120.0
"""For a key that somebody waits for to come to its next version: above the store's own deadline, whose message says
which slots are missing."""

CAPTURE_TIMEOUTS: Final = 15
"""So many times as long a capture waits for the next version: steps that take minutes have snapshots too."""

_log = logging.getLogger("weft.worker")


@dataclass(eq=False, frozen=True, slots=True)
class _Wait:
    """For a version of a key; the future ends while the key is at it. `since`: when somebody began to wait, who waits
    `timeout_s` for each update."""

    key: str
    version: int
    since: float
    timeout_s: float
    future: StoreFuture[None]

    def __str__(self) -> str:
        return f"version {self.version} of key {self.key!r}, which this worker updates"


@dataclass(eq=False, slots=True)
class _Key:
    """A key that is updated here. `version` is how many updates it has seen, None before its first value is there, and
    `at_it_since` the time of the last; `error` why it will see no more. `waits` are those for later versions."""

    described: KeyDescription
    local: LocalKey
    version: int | None = None
    at_it_since: float = -math.inf
    error: BaseException | None = None
    is_begun: bool = False
    waits: list[_Wait] = field(default_factory=list)


class LocalUpdateStore:
    """Implements `RunStore`. `local.keys` are updated here; everything else is the store's, which it
    closes.

    At most one gradient of a key is under way: this slot contributes to a step once it has the gradient of the one
    before. So no shard can pass a version that this worker has not pulled.
    """

    def __init__(
        self,
        store: RunStore,
        local: LocalKeys,
        updating: Updating,
        *,
        snapshot: Snapshot | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Goes on from a `snapshot`, where there is one. Raises SnapshotError."""
        self.within = store
        self._updating = updating
        self._timeout_s = timeout_s
        self._slice_bytes = local.seen.slice_bytes
        self._keys = {name: _Key(key, LocalKey(key, updating, local.seen)) for name, key in local.keys.items()}
        if snapshot is not None:
            self._restore(snapshot)
        self._look_at = time.monotonic() + timeout_s
        """When to look next whether a wait has taken too long: none can have before."""
        self._numbers = itertools.count()
        self._events: PriorityQueue[tuple[int, int, Callable[[], None]]] = PriorityQueue()
        """What the thread has to do, of urgent keys first, of one key in order."""
        self._closing = False
        self._over: str | None = None
        """Why nothing is handled any more."""
        self._lock = threading.RLock()
        """Held while an event is put, and while none may be any more."""
        self._thread = threading.Thread(target=self._run, name="local-update", daemon=True)
        self._thread.start()

    def capture(self, step: int, done: Callable[[Captured | MissedError], None]) -> None:
        """Calls `done` with copies of the keys that this worker updates, and of the rule's arrays, at version `step`,
        once all of them have been at it; or with why they will not. It has to be quick. May be called on any thread."""
        timeout_s = CAPTURE_TIMEOUTS * self._timeout_s
        taken = [
            self._at([name], step, partial(self._captured_arrays, key), timeout_s) for name, key in self._keys.items()
        ]
        whole = joined(taken, lambda found: [*itertools.chain.from_iterable(found)])

        def end(_: Future[list[CapturedArray]]) -> None:
            error = error_of(whole)
            done(Captured(whole.result) if error is None else MissedError(str(error)))

        on_end(whole, end)

    @property
    def device(self) -> Device:
        """Where values are kept."""
        return self._updating.device

    def has(self, key: str) -> bool:
        """Whether it is updated here, and its value is on the device."""
        return key in self._keys

    def pull_on_device(self, key: str, version: int) -> Future[Array]:
        """Such a key's value at a version, a copy on the device."""
        return self._at([key], version, self._keys[key].local.value_there)

    def push(self, key: str, step: int, gradient: Array, ids: Array | None = None) -> Future[None]:
        if key not in self._keys:
            return self.within.push(key, step, gradient, ids)
        if self._keys[key].version == step:  # Another thread changes it, and not before this push.
            return self._push(key, step, gradient)
        return self._at([key], step, lambda: self._push(key, step, gradient))

    def pull(
        self, key: str, version: int, ids: Array | None = None, *, settled: bool = False, state: bool = False
    ) -> Future[Any]:
        if key not in self._keys:
            return self.within.pull(key, version, ids, settled=settled, state=state)
        local = self._keys[key].local
        return self._at([key], version, local.state if state else local.value)

    def set(self, key: str, version: int, value: Array, ids: Array | None = None) -> Future[None]:
        if key in self._keys and version > 0:
            where = f"key {key!r}, version {version}"
            raise StoreRefusedError(f"{where}: every worker updates it by itself; it cannot be set while the job runs")
        return self.within.set(key, version, value, ids)

    def barrier(self, step: int, nothing: Sequence[str]) -> Future[StepOutcome | None]:
        """A key that this worker updates is declared once its version `step` is there: see the class."""
        local = [key for key in nothing if key in self._keys]
        declared = [gradient_key(key) if key in self._keys else key for key in nothing]

        def declare() -> Future[StepOutcome | None]:
            for key in local:
                self._ask_gradient(key, step)
            return self.within.barrier(step, declared)

        return self._at(local, step, declare) if local else declare()

    def statistics(self) -> ClientStatistics:
        return self.within.statistics()

    def close(self) -> None:
        self.within.close()
        with self._lock:
            self._closing = True
            self._events.put((0, next(self._numbers), lambda: None))
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _at(
        self, keys: Sequence[str], version: int, make: Callable[[], Any], timeout_s: float | None = None
    ) -> StoreFuture[Any]:
        """Ends with what `make` gives, or as the future that it gives does. It is called on the thread, once each of
        the keys has been at the version and while the last one is. A key that sees no update for too long fails it."""
        now = time.monotonic()
        waits = [_Wait(key, version, now, timeout_s or self._timeout_s, StoreFuture()) for key in keys]
        made: StoreFuture[Any] = joined([wait.future for wait in waits], lambda _: make())
        for wait in waits:
            if not self._put(wait.key, partial(self._look, wait)):
                wait.future.set_exception(StoreLostError(f"{wait}: {self._over}"))
        return made

    def _put(self, key: str, event: Callable[[], None]) -> bool:
        """Has the thread handle an event; False where it does no more."""
        with self._lock:
            if self._over is None:
                self._events.put((self._keys[key].described.priority, next(self._numbers), event))
            return self._over is None

    def _push(self, key: str, step: int, gradient: Array) -> Future[None]:
        self._ask_gradient(key, step)
        return self.within.push(gradient_key(key), step, gradient)

    def _ask_gradient(self, key: str, step: int) -> None:
        came = self.within.pull(gradient_key(key), step + 1)
        came.add_done_callback(lambda _: self._put(key, lambda: self._gradient_came(key, step, came)))

    # --- On the thread

    def _run(self) -> None:
        reason = "the store was closed"
        try:
            while not self._closing:
                self._round()
        except Exception as error:  # noqa: BLE001  # the thread's outermost frame: whoever waits must hear of it
            reason = f"the thread that updates has failed: {type(error).__name__}: {error}"
            _log.exception("the thread that updates has failed")
        with self._lock:
            self._over = reason
        for name in self._keys:
            self._reach(name, 0, StoreLostError(f"key {name!r}, which this worker updates: {reason}"))
        with suppress(Empty):
            while True:  # Of a key that has an error events end waits alone.
                self._events.get_nowait()[2]()

    def _round(self) -> None:
        with suppress(Empty):
            event = self._events.get(timeout=max(self._look_at - time.monotonic(), 0.0))[2]
            # Not while it waits: what another thread captures as a graph may hold nobody else's work.
            with self._updating.device.use():
                event()
        if self._look_at <= (now := time.monotonic()):
            self._end_late(now)

    def _end_late(self, now: float) -> None:
        """Ends what has waited too long for a key that has seen no update meanwhile."""
        self._look_at = now + self._timeout_s
        for key in self._keys.values():
            waits, key.waits = key.waits, []
            for wait in waits:
                due_at = max(wait.since, key.at_it_since) + wait.timeout_s
                if now < due_at:
                    key.waits.append(wait)
                    self._look_at = min(self._look_at, due_at)
                elif not wait.future.done():
                    there = f"it has {wait.key!r} at version {key.version}"
                    wait.future.set_exception(StoreTimeoutError(f"{wait} took over {wait.timeout_s:g} s: {there}"))

    def _look(self, wait: _Wait) -> None:
        """Ends the wait if the key is at its version, or will not be; else it goes on."""
        key = self._keys[wait.key]
        if wait.future.done():
            return
        if key.error is not None:
            wait.future.set_exception(key.error)
        elif key.version == wait.version:
            wait.future.set_result(None)
        elif key.version is not None and key.version > wait.version:
            wait.future.set_exception(StoreError(f"{wait}: key {wait.key!r} is at version {key.version} already"))
        else:
            key.waits.append(wait)
            if key.version is None and not key.is_begun:
                key.is_begun = True
                came = self.within.pull(wait.key, 0)
                came.add_done_callback(lambda _: self._put(wait.key, lambda: self._first_came(wait.key, came)))

    def _first_came(self, name: str, came: Future[Array]) -> None:
        key, error = self._keys[name], error_of(came)
        if error is None and key.error is None:
            key.local.begin(came.result())
        if isinstance(error, StoreTimeoutError):  # It may be set later: who waits again asks again.
            key.is_begun, waits, key.waits = False, key.waits, []
            for wait in waits:
                wait.future.set_exception(error)
            return
        self._reach(name, 0, error)

    def _gradient_came(self, name: str, step: int, came: Future[Array]) -> None:
        """The merged gradient of `step` is there, or will not come."""
        key, error = self._keys[name], error_of(came)
        if error is None and key.error is None and key.version != step:
            error = StoreError(f"key {name!r}, step {step}: the key is at version {key.version}")
        if error is None and key.error is None:
            try:
                key.local.update(came.result(), step)
            except Exception as raised:  # noqa: BLE001  # a user's rule, a device without memory
                where = f"rule {self._updating.rule.name!r} failed on key {name!r}, step {step}"
                error = StoreError(f"{where}: {type(raised).__name__}: {raised}")
        self._reach(name, step + 1, error)

    def _reach(self, name: str, version: int, error: BaseException | None) -> None:
        """The key is at that version now, or will see no more: the first error counts."""
        key = self._keys[name]
        key.error = key.error or error
        if key.error is None:
            key.version, key.at_it_since = version, time.monotonic()
        waits, key.waits = key.waits, []
        for wait in waits:
            self._look(wait)

    def _captured_arrays(self, key: _Key) -> list[CapturedArray]:
        """Copies of a key's arrays."""
        updates: Array = np.full(slices_of(key.described, self._slice_bytes).count, key.version, np.int64)
        arrays = {VALUE: key.local.value(), **key.local.state(), UPDATES: updates}
        return [captured_array(name, key.described.key, 0, array.reshape(-1)) for name, array in arrays.items()]

    def _restore(self, snapshot: Snapshot) -> None:
        names = (VALUE, *self._updating.rule.state)
        with SnapshotReader(snapshot) as reader, self._updating.device.use():
            for name, key in self._keys.items():
                of = key.local
                arrays = {array: reader.read(array, name, 0, of.size, of.dtype) for array in names}
                of.restore(arrays.pop(VALUE).reshape(of.shape), arrays)
                key.version = snapshot.step
