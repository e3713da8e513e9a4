"""A store over the job's store, for a worker that updates keys itself: merged gradients come, values are handed out.

Such a key's merged gradient is pulled from the moment its own is pushed; the rule is applied on this store's own
thread, key by key as gradients arrive, never on the thread that moves bytes.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, PriorityQueue
from typing import Any, Final

from weft.api.store import gradient_key
from weft_kernels.rule import Rule
from weft_kvstore.deadlines import Deadlines
from weft_kvstore.statistics import ClientStatistics
from weft_kvstore.store import Array, Store, StoreError, StoreLostError, StoreRefusedError, StoreTimeoutError
from weft_worker.local_key import LocalKey
from weft_worker.local_keys import LocalKeys

TIMEOUT_S: Final = 120.0
"""For a version of a key to come about: above the store's own deadline, whose message says which slots are missing."""

Take = Callable[[LocalKey], Any]


@dataclass(eq=False, slots=True)
class _Wait:
    """Somebody waits for a key's version, and takes something of it then."""

    key: str
    version: int
    future: Future[Any]
    take: Take

    def __str__(self) -> str:
        return f"version {self.version} of key {self.key!r}, which this worker updates"


class LocalUpdateStore:
    """Implements `Store`. `local.keys` are updated here, by `rule`; everything else is the store's, which it closes.

    At most one gradient of a key is under way: this slot contributes to a step once it has the gradient of the one
    before. So no shard can pass a version that this worker has not pulled.
    """

    def __init__(self, store: Store, local: LocalKeys, rule: Rule, *, timeout_s: float = TIMEOUT_S) -> None:
        self._store = store
        self._rule = rule
        self._timeout_s = timeout_s
        self._keys = {name: LocalKey(key, rule, local.seen) for name, key in local.keys.items()}
        self._waits: dict[str, list[_Wait]] = {name: [] for name in self._keys}
        self._failed: dict[str, StoreError] = {}
        self._asked: set[str] = set()
        self._open: dict[int, _Wait] = {}
        self._deadlines = Deadlines()
        self._numbers = itertools.count()
        self._events: PriorityQueue[tuple[int, int, Callable[[], None]]] = PriorityQueue()
        self._closing = False
        self._over = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="local-update", daemon=True)
        self._thread.start()

    def push(self, key: str, step: int, gradient: Array) -> Future[None]:
        if key not in self._keys:
            return self._store.push(key, step, gradient)
        if self._keys[key].version == step:
            return self._push(key, step, gradient)
        told: Future[None] = Future()

        def push() -> None:
            self._push(key, step, gradient).add_done_callback(lambda ended: _hand_on(ended, told))

        _join([self._when(key, step, lambda _: None)], told, push)
        return told

    def push_rows(self, key: str, step: int, ids: Array, rows: Array) -> Future[None]:
        return self._store.push_rows(key, step, ids, rows)

    def pull(self, key: str, version: int, *, settled: bool = False) -> Future[Array]:
        if key not in self._keys:
            return self._store.pull(key, version, settled=settled)
        return self._when(key, version, LocalKey.value)

    def pull_rows(self, key: str, ids: Array, version: int, *, settled: bool = False) -> Future[Array]:
        return self._store.pull_rows(key, ids, version, settled=settled)

    def pull_state(self, key: str, version: int, *, settled: bool = False) -> Future[Mapping[str, Array]]:
        if key not in self._keys:
            return self._store.pull_state(key, version, settled=settled)
        return self._when(key, version, LocalKey.state)

    def pull_state_rows(
        self, key: str, ids: Array, version: int, *, settled: bool = False
    ) -> Future[Mapping[str, Array]]:
        return self._store.pull_state_rows(key, ids, version, settled=settled)

    def set(self, key: str, version: int, value: Array) -> Future[None]:
        if key in self._keys and version > 0:
            refused: Future[None] = Future()
            where = f"key {key!r}, version {version}"
            refused.set_exception(
                StoreRefusedError(f"{where}: every worker updates it by itself; it cannot be set while the job runs")
            )
            return refused
        return self._store.set(key, version, value)

    def set_rows(self, key: str, version: int, ids: Array, rows: Array) -> Future[None]:
        return self._store.set_rows(key, version, ids, rows)

    def barrier(self, step: int, nothing: Sequence[str]) -> Future[None]:
        """A key that this worker updates is declared once its version `step` is there: see the class."""
        local = [key for key in nothing if key in self._keys]
        if not local:
            return self._store.barrier(step, nothing)
        declared = [gradient_key(key) if key in self._keys else key for key in nothing]
        told: Future[None] = Future()

        def declare() -> None:
            for key in local:
                self._ask_gradient(key, step)
            self._store.barrier(step, declared).add_done_callback(lambda ended: _hand_on(ended, told))

        _join([self._when(key, step, lambda _: None) for key in local], told, declare)
        return told

    def statistics(self) -> ClientStatistics:
        return self._store.statistics()

    def close(self) -> None:
        self._store.close()
        with self._lock:
            self._closing = True
            self._events.put((0, next(self._numbers), lambda: None))
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _when(self, key: str, version: int, take: Take) -> Future[Any]:
        """Ends with what `take` gives at that version of the key."""
        wait = _Wait(key, version, Future(), take)
        self._put(key, lambda: self._admit(wait), wait)
        return wait.future

    def _put(self, key: str, event: Callable[[], None], wait: _Wait | None = None) -> None:
        """Has the thread handle an event: of urgent keys first, of one key in order."""
        with self._lock:
            if not self._over:
                if wait is not None:
                    number = next(self._numbers)
                    self._open[number] = wait
                    self._deadlines.add(time.monotonic() + self._timeout_s, number)
                self._events.put((self._keys[key].key.priority, next(self._numbers), event))
                return
        if wait is not None:
            wait.future.set_exception(StoreLostError(f"{wait}: the store was closed"))

    def _push(self, key: str, step: int, gradient: Array) -> Future[None]:
        self._ask_gradient(key, step)
        return self._store.push(gradient_key(key), step, gradient)

    def _ask_gradient(self, key: str, step: int) -> None:
        future = self._store.pull(gradient_key(key), step + 1)
        future.add_done_callback(lambda ended: self._put(key, lambda: self._updated(key, step, ended)))

    def _run(self) -> None:
        reason = "the store was closed"
        try:
            while not self._closing:
                self._round()
        except Exception as error:  # the thread's outermost frame: whoever waits must hear of it
            reason = f"the thread that updates has failed: {type(error).__name__}: {error}"
            raise
        finally:
            with self._lock:
                self._over = True
                waits = list(self._open.values())
            for wait in waits:
                if not wait.future.done():
                    wait.future.set_exception(StoreLostError(f"{wait}: {reason}"))

    def _round(self) -> None:
        with self._lock:
            pause_s = min(self._deadlines.next() - time.monotonic(), self._timeout_s)
        try:
            event = self._events.get(timeout=max(pause_s, 0.0))[2]
        except Empty:
            pass
        else:
            event()
        self._end_late()

    def _end_late(self) -> None:
        with self._lock:
            for number in [number for number, wait in self._open.items() if wait.future.done()]:
                del self._open[number]
            late = [self._open.pop(number) for number in self._deadlines.due(time.monotonic(), self._open)]
        for wait in late:
            at = self._keys[wait.key].version
            text = f"{wait} took over {self._timeout_s:g} s: the key is at version {at}"
            wait.future.set_exception(StoreTimeoutError(text))

    def _admit(self, wait: _Wait) -> None:
        key = self._keys[wait.key]
        if wait.future.done():
            return
        if wait.key in self._failed:
            wait.future.set_exception(self._failed[wait.key])
        elif key.version == wait.version:
            wait.future.set_result(wait.take(key))
        elif key.version is not None and key.version > wait.version:
            wait.future.set_exception(StoreError(f"{wait}: the key is at version {key.version} already"))
        else:
            self._waits[wait.key].append(wait)
            self._begin(wait.key)

    def _begin(self, key: str) -> None:
        """Asks for the first value, once."""
        if key not in self._asked:
            self._asked.add(key)
            future = self._store.pull(key, 0)
            future.add_done_callback(lambda ended: self._put(key, lambda: self._begun(key, ended)))

    def _begun(self, key: str, ended: Future[Array]) -> None:
        if self._came(key, ended):
            self._keys[key].begin(ended.result())
            self._answer(key)

    def _updated(self, key: str, step: int, ended: Future[Array]) -> None:
        """The merged gradient of `step` is there, or will not come."""
        if not self._came(key, ended):
            return
        where = f"key {key!r}, step {step}"
        try:
            if self._keys[key].version != step:
                raise ValueError(f"the key is at version {self._keys[key].version}")
            self._keys[key].update(ended.result())
        except Exception as error:  # noqa: BLE001  # a rule may be a user's: what it raises goes to those who wait
            told = StoreError(f"rule {self._rule.name!r} failed on {where}: {type(error).__name__}: {error}")
            self._fail(key, told)
        else:
            self._answer(key)

    def _came(self, key: str, ended: Future[Array]) -> bool:
        error = ended.exception()
        if error is not None:
            told = error if isinstance(error, StoreError) else StoreError(f"key {key!r}: {error}")
            self._fail(key, told)
        return error is None and key not in self._failed

    def _fail(self, key: str, error: StoreError) -> None:
        self._failed.setdefault(key, error)
        self._answer(key)

    def _answer(self, key: str) -> None:
        """Looks again at who waits for the key."""
        waits, self._waits[key] = self._waits[key], []
        for wait in waits:
            self._admit(wait)


def _join(parts: Sequence[Future[Any]], told: Future[None], then: Callable[[], None]) -> None:
    """Calls `then` when all parts have ended; `told` ends with the first error instead."""
    lock, left = threading.Lock(), [len(parts)]

    def ended(part: Future[Any]) -> None:
        error = part.exception()
        with lock:
            left[0] -= 1
            last = left[0] == 0
            first_error = error is not None and not told.done()
            if first_error:
                told.set_exception(error)
        if last and not told.done():
            then()

    for part in parts:
        part.add_done_callback(ended)


def _hand_on(ended: Future[None], told: Future[None]) -> None:
    error = ended.exception()
    if error is not None:
        told.set_exception(error)
    else:
        told.set_result(None)
