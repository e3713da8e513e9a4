"""The store of one process: the cores of a shard and of each slot's client, joined without sockets by one thread."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final

import msgspec
import numpy as np

from weft_kvstore.client.core import ClientCore
from weft_kvstore.client.operation import Operation
from weft_kvstore.client.store_client import Store
from weft_kvstore.description.check import check_description
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.errors import StoreClosedError, StoreError
from weft_kvstore.futures import OtherThread, StoreFuture
from weft_kvstore.process import Callbacks
from weft_kvstore.rows.growing_array import TablePlace
from weft_kvstore.same_host.client_arrays import ClientMemory
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.core import ShardCore
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.snapshot import Capture, Captured, MissedError, restore
from weft_kvstore.sharding import routing_of
from weft_kvstore.snapshot_files import Snapshot
from weft_kvstore.store import ClientStatistics

ENDPOINT: Final = "inproc://local"
"""What errors call the one shard's endpoint."""

LONGEST_SLEEP_S: Final = 60.0

_log = logging.getLogger("weft.store")


class LocalSlot(Store):
    """A local store as one of its slots sees it; closing it closes nothing."""

    def __init__(self, store: LocalStore, description: StoreDescription, slot: int) -> None:
        super().__init__(description, slot)
        self.memory = store._memories[slot]
        self.failed = store._clients[slot].failed
        self.submit = partial(store._hand_over, slot)
        self._store = store

    def at_slot(self, slot: int) -> LocalSlot:
        """The same store as another slot sees it. Raises ValueError."""
        return LocalSlot(self._store, self._description, slot)

    def statistics(self) -> ClientStatistics:
        """Counts of this moment; nothing passes a socket."""
        client = self._store._clients[self._slot]
        submitted = sum(slot == self._slot for slot, _ in list(self._store._submitted))
        return ClientStatistics(
            operations=len(client.open) + submitted, rows_pushed=client.rows_pushed, rows_pulled=client.rows_pulled
        )

    def close(self) -> None:
        """Nothing: the store belongs to whoever made it."""


class LocalStore(LocalSlot):
    """Slot 0's store; `at_slot` gives the others', for several slots in one process.

    A push ends when the gradient was copied. `tables`: where rows of tables lie; None: in memory. It goes on from a
    `snapshot`, where there is one. Raises DescriptionError for a description that cannot be a store, SnapshotError.
    """

    waited_for: StoreFuture[Any] | None = None

    def __init__(
        self,
        description: StoreDescription,
        *,
        settings: LinkSettings = LinkSettings(),  # noqa: B008  # frozen
        tables: TablePlace | None = None,
        snapshot: Snapshot | None = None,
    ) -> None:
        check_description(description)
        # Whatever the number of shards, none too, there is one here: rows and slices are all on it. Nothing travels.
        keys = tuple(msgspec.structs.replace(key, compression=None) for key in description.keys)
        self._description = msgspec.structs.replace(description, shards=(ENDPOINT,), keys=keys, compression=None)
        self._memories = [ClientMemory(keys) for _ in range(description.slots)]
        settings, routing = replace(settings, same_host=False), routing_of(self._description)  # Of all slots.
        self._clients = [
            ClientCore(
                self._description,
                routing,
                slot,
                1,
                os.urandom(16),
                settings=settings,
                endpoints=self._description.shards,
                now=time.monotonic(),
            )
            for slot in range(description.slots)
        ]
        super().__init__(self, self._description, 0)
        self._job = JobShard(self._description, 0, tables=tables)
        if snapshot is not None:
            restore(self._job, snapshot)
        self._shard = ShardCore(os.urandom(16), settings)
        self._shard.open(self._job)
        self._submitted: deque[tuple[int, Operation]] = deque()
        self._calls: deque[Callable[[], object]] = deque()
        """Work of other threads for the store's own."""
        self._callbacks = Callbacks("weft-local-store-callbacks")
        self._closing = False
        self._reason = "the store was closed"
        self._wakes: SimpleQueue[None] = SimpleQueue()
        """An item for each change, put after the change. It has no lock that a signal's handler could find held."""
        self._here = OtherThread(self._soon, lambda: self._closing)
        self._thread = threading.Thread(target=self._run, name="weft-local-store", daemon=True)
        self._thread.start()

    def capture(
        self, step: int, captured: Callable[[Captured | MissedError], None], *, since: int | None = None
    ) -> None:
        """Calls `captured`, on the store's thread, with all that there is at version `step`, once it is at it; it has
        to be quick. What it is given is to be released. `since`: of tables what has changed since the capture at that
        step, if that is known."""
        self._soon(lambda: Capture(self._job, step, captured, self._here, since=since))

    def drive(self, future: StoreFuture[Any], timeout_s: float | None) -> None:
        """Returns when the future has ended, or after that long. Raises StoreError where it could never end: in a
        forked child, and on the store's own thread, where a finalizer may run."""
        self._process.check()
        if threading.current_thread() is self._thread:
            raise StoreError("a finalizer came on the store's own thread, on which nobody can wait for a result")
        future.sleep(SimpleQueue(), threading.TIMEOUT_MAX if timeout_s is None else max(timeout_s, 0.0))

    def ended(self, future: StoreFuture[Any]) -> None:
        """It has ended, on this thread."""
        self._callbacks.add(future)

    def close(self) -> None:
        if not self._process.is_here:
            return  # The thread is the parent's.
        self._closing = True
        self._wakes.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _soon(self, work: Callable[[], object]) -> None:
        self._calls.append(work)
        self._wakes.put(None)

    def _hand_over(self, slot: int, operation: Operation) -> StoreFuture[Any]:
        self._process.check()
        operation.future.driver = self
        self._submitted.append((slot, operation))
        self._wakes.put(None)
        if self._closing:  # The thread may have taken operations for the last time.
            self._refuse_submitted()
        return operation.future

    def _run(self) -> None:
        try:
            with np.errstate(all="ignore"):  # What overflows is the user's to see in the values.
                while not self._closing:
                    try:
                        self._round()
                    except Exception as error:
                        if self._shard.job is None:
                            raise
                        self._shard.fail(error)  # The clients are told.
        except Exception as error:  # the thread's outermost frame: whoever waits on a future must hear of it
            self._reason = f"the store's thread failed: {type(error).__name__}: {error}"
            raise
        finally:
            self._closing = True
            self._refuse_submitted()
            for client in self._clients:
                client.close(self._reason)
                client.end_futures()
            self._shard.close(self._reason)

    def _round(self) -> None:
        """Carries messages both ways and merges the most urgent slice; sleeps if there was nothing to do."""
        while self._calls:
            self._calls.popleft()()
        for slot, operation in iter(self._next_submitted, None):
            self._clients[slot].begin(operation, time.monotonic())
        busy = self._exchange()
        if self._shard.work.work_once():
            busy = True
        if not busy:
            left_s = min([client.tick_at for client in self._clients]) - time.monotonic()
            with suppress(Empty):
                self._wakes.get(timeout=min(max(left_s, 0.0), LONGEST_SLEEP_S))

    def _next_submitted(self) -> tuple[int, Operation] | None:
        try:
            return self._submitted.popleft()
        except IndexError:
            return None

    def _refuse_submitted(self) -> None:
        """What was handed over and has not begun fails, on whatever thread."""
        for slot, operation in iter(self._next_submitted, None):
            operation.future.set_exception(StoreClosedError(f"slot {slot}: {operation}: {self._reason}"))

    def _exchange(self) -> bool:
        """Delivers what the clients and the shard have for each other. Whether there was anything."""
        shard, busy = self._shard, False
        for slot, client in enumerate(self._clients):
            (link,), now, identity = client.links, time.monotonic(), slot.to_bytes(4)
            client.tick(now)
            link.flush(now)
            outgoing, link.outgoing = link.outgoing, []
            for header, *payload in outgoing:
                busy = True
                # Arrays are the caller's again once they have arrived.
                shard.receive(identity, [header, *map(bytes, payload)], now)
        shard.flush(time.monotonic())
        answers, shard.links.outgoing = shard.links.outgoing, []
        for identity, parts in answers:
            busy = True
            views = [memoryview(part).toreadonly() for part in parts]
            self._clients[int.from_bytes(identity)].receive(0, views, time.monotonic())
        for client in self._clients:
            client.end_futures()
        return busy
