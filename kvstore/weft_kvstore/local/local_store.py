"""The store of one process: no shards, no sockets, the same interface and the same results."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

import msgspec
import numpy as np

from weft_kvstore.client.calls import StoreCalls, end_futures
from weft_kvstore.client.operation import Operation
from weft_kvstore.description.check import check_description
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.errors import StoreError
from weft_kvstore.futures import OtherThread, StoreFuture
from weft_kvstore.local.core import LocalCore
from weft_kvstore.rows.memory import TablePlace
from weft_kvstore.same_host.memory import ClientMemory
from weft_kvstore.settings import STALL_S, LinkSettings
from weft_kvstore.shard.snapshot import Held, MissedError
from weft_kvstore.snapshot_files import Snapshot
from weft_kvstore.statistics import ClientStatistics

LONGEST_SLEEP_S = 60.0


class _AtSlot(StoreCalls):
    """A local store as one of its slots sees it; closing it closes nothing."""

    def __init__(self, store: LocalStore, description: StoreDescription, slot: int) -> None:
        super().__init__(description, slot)
        self._memory = store._memories.setdefault(slot, self._memory)
        self.hand_to(lambda operation: store._hand_over(slot, operation), store)
        self._store = store

    def statistics(self) -> ClientStatistics:
        """Counts of this moment; nothing passes a socket, and `operations` are those of all slots."""
        core = self._store._core
        return ClientStatistics(
            operations=len(core) + len(self._store._submitted),
            rows_pushed=core.rows_pushed[self._slot],
            rows_pulled=core.rows_pulled[self._slot],
        )

    def close(self) -> None:
        """Nothing: the store belongs to whoever made it."""


class LocalStore(_AtSlot):
    """Slot 0's store; `at_slot` gives the others', for several slots in one process. One thread merges.

    A push ends when the gradient was copied. `tables`: where rows of tables lie; None: in memory. It goes on from a
    `snapshot`, where there is one. Raises DescriptionError for a description that cannot be a store, SnapshotError.
    """

    def __init__(
        self,
        description: StoreDescription,
        *,
        settings: LinkSettings = LinkSettings(),  # noqa: B008  # frozen
        tables: TablePlace | None = None,
        snapshot: Snapshot | None = None,
    ) -> None:
        # Whatever the number of shards, none too, there is one here: rows and slices are all on it. Nothing travels.
        check_description(msgspec.structs.replace(description, shards=("local",)))
        keys = tuple(msgspec.structs.replace(key, compression=None) for key in description.keys)
        self._description = msgspec.structs.replace(description, shards=("local",), keys=keys, compression=None)
        self._memories: dict[int, ClientMemory] = {}
        super().__init__(self, self._description, 0)
        self._submitted: deque[tuple[int, Operation]] = deque()
        self._asked: deque[Callable[[], None]] = deque()
        """What other threads want done on the store's."""
        self._closing = False
        self._look_at = math.inf
        """When the thread means to look next; it stood still if it looks much later."""
        self._changed = threading.Condition()
        there = OtherThread(self._soon, lambda: self._closing)
        self._core = LocalCore(self._description, settings, tables, snapshot, there=there)
        self._thread = threading.Thread(target=self._run, name="weft-local-store", daemon=True)
        self._thread.start()

    def at_slot(self, slot: int) -> StoreCalls:
        """The same store as another slot sees it; closing it closes nothing. Raises ValueError."""
        return _AtSlot(self, self._description, slot)

    def capture(self, step: int, told: Callable[[Held | MissedError], None], *, since: int | None = None) -> None:
        """Calls `told`, on the store's thread, with all that there is at version `step`, once it is at it; it has to be
        quick. What it is given is to be released. `since`: of tables what has changed since the capture at that step,
        if that is known."""
        self._soon(lambda: self._core.capture(step, told, since))

    waited_for: StoreFuture[Any] | None = None

    def drive(self, future: StoreFuture[Any], timeout_s: float | None) -> None:
        """Returns when the future has ended, or after that long. Raises StoreError where it could never end: in a
        forked child, and in a signal's handler that came in the middle of a call."""
        self._process.check()
        if self._changed._is_owned():  # type: ignore[attr-defined]  # typeshed does not have it
            raise StoreError("in the middle of the store's own work nobody can wait for a result of it")
        with future._condition:
            if timeout_s is not None and not future.done():
                future._condition.wait(timeout_s)  # Without a deadline the future itself waits.

    def ended(self, future: StoreFuture[Any]) -> None:
        """It has ended, on this thread."""
        if future.has_callbacks:
            future.call_back()

    def close(self) -> None:
        if not self._process.is_here:
            return  # The thread is the parent's.
        with self._changed:
            self._closing = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> LocalStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _soon(self, work: Callable[[], None]) -> None:
        with self._changed:
            self._asked.append(work)
            self._changed.notify()

    def _hand_over(self, slot: int, operation: Operation) -> None:
        with self._changed:
            if not self._closing:
                self._submitted.append((slot, operation))
                self._changed.notify()
                return
        operation.future.set_exception(StoreError(f"slot {slot}: {operation}: the store was closed"))

    def _run(self) -> None:
        reason = "the store was closed"
        try:
            with np.errstate(all="ignore"):  # What overflows is the user's to see in the values.
                while not self._closing:
                    self._round()
        except Exception as error:  # the thread's outermost frame: whoever waits on a future must hear of it
            reason = f"the store's thread failed: {type(error).__name__}: {error}"
            raise
        finally:
            with self._changed:
                self._closing = True
            self._core.close(reason)
            self._begin_submitted()
            end_futures(self._core)
            self._core.release()

    def _round(self) -> None:
        """Takes in what was handed over, merges the most urgent slice, and looks again."""
        self._begin_submitted()
        while self._asked:
            self._asked.popleft()()
        busy = self._core.work_once()
        now = time.monotonic()
        if now - self._look_at > STALL_S:
            self._core.after_stall(now - self._look_at)
        self._core.tick(now)
        end_futures(self._core)
        self._look_at = now
        if not busy:
            with self._changed:
                now = time.monotonic()
                longest_s = STALL_S if len(self._core) else LONGEST_SLEEP_S  # Else a long stall would look short.
                timeout_s = min(max(self._core.next_tick() - now, 0.0), longest_s)
                self._look_at = now + timeout_s
                self._changed.wait_for(lambda: self._closing or bool(self._submitted or self._asked), timeout_s)

    def _begin_submitted(self) -> None:
        while self._submitted:
            slot, operation = self._submitted.popleft()
            self._core.begin(slot, operation, time.monotonic())
