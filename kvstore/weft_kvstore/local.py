"""The store of one process: a shard, and a client for each slot, which pass their messages on without sockets."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import msgspec
import numpy as np

from weft_kvstore.arrays import Buffer
from weft_kvstore.client.calls import StoreCalls, check_slot
from weft_kvstore.client.core import ClientCore
from weft_kvstore.client.sockets import Readable, Transport
from weft_kvstore.client.store_client import StoreClient
from weft_kvstore.description.check import check_description
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.errors import StoreError
from weft_kvstore.futures import OtherThread
from weft_kvstore.rows.memory import TablePlace
from weft_kvstore.same_host.arrays import ClientMemory
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.core import ShardCore
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.snapshot import Capture, Captured, MissedError, restore
from weft_kvstore.snapshot_files import Snapshot
from weft_kvstore.store import ClientStatistics

ENDPOINT: Final = "inproc://local"
"""What errors call the one shard's endpoint."""

_log = logging.getLogger("weft.store")


class LocalTransport(Transport):
    """Between the client of a slot and the shard: the thread that sends a message carries it out too."""

    def __init__(self, shard: LocalShard, slot: int, core: ClientCore, memory: ClientMemory) -> None:
        super().__init__(core, memory)
        self.working, self.threads = shard.working, shard.threads
        self.inbox: deque[list[memoryview]] = deque()
        """What the shard has said, and was not read."""
        self.slot = slot
        self._shard = shard

    def receive(self, readable: Readable, now: float) -> None:
        """Merges the most urgent slice, and reads what the shard has said."""
        if self._shard.has_work:
            self._shard.work()
        while self.inbox:
            self.core.receive(0, self.inbox.popleft(), time.monotonic())

    def send(self, now: float, most: float = math.inf) -> None:
        (link,) = self.core.links
        self.core.acknowledges_at_once = False
        more = link.flush(now, most)
        if link.reopen:
            link.reopen = False
            self.inbox.clear()
        outgoing, link.outgoing = link.outgoing, []
        if outgoing:
            self._shard.work(self, outgoing)
        self.has_more = more or self._shard.has_work

    def unread(self) -> bool:
        return bool(self.inbox) or self._shard.has_work

    def release(self) -> None:
        self._shard.leave(self)
        super().release()


class LocalShard:
    """The shard of a local store, and the `ends` of clients that have sent something, by slot. A thread that uses it
    holds `working`.

    What is raised in the middle of its work, by a fault or a signal's handler, ends the store: what it has is uncertain
    then.
    """

    def __init__(self, job: JobShard, settings: LinkSettings) -> None:
        self.working = threading.RLock()
        self.threads: list[threading.Thread] = []
        self.ends: dict[int, LocalTransport] = {}
        self._core = ShardCore(os.urandom(16), settings)
        self._core.open(job)
        self._failure: BaseException | None = None

    @property
    def has_work(self) -> bool:
        """Whether slices wait to be merged, or the store has failed, which `work` says."""
        return bool(self._core.work.queue) or self._failure is not None

    def work(self, sender: LocalTransport | None = None, messages: Sequence[Sequence[Buffer]] = ()) -> None:
        """Carries out a client's messages, or else merges the most urgent slice; then gives the clients what the shard
        says. Raises StoreError once that was broken off."""
        if self._failure is not None:
            raise StoreError(f"the shard's work was broken off: {type(self._failure).__name__}: {self._failure}")
        try:
            with np.errstate(all="ignore"):  # What overflows is the user's to see in the values.
                if sender is None:
                    self._core.work.work_once()
                else:
                    self.ends[sender.slot] = sender
                    for message in messages:
                        self._receive(sender, message)
                self._core.flush(time.monotonic())
            answers, self._core.links.outgoing = self._core.links.outgoing, []
            for identity, parts in answers:
                if (end := self.ends.get(int.from_bytes(identity))) is not None:
                    end.inbox.append([memoryview(part).toreadonly() for part in parts])
                    end.notice()
        except BaseException as error:
            self._failure = error
            for end in self.ends.values():
                end.notice()
            raise

    def leave(self, end: LocalTransport) -> None:
        """A client is closed. With the last one the shard is."""
        self.ends.pop(end.slot, None)
        if not self.ends:
            self._core.close("the store was closed")

    def _receive(self, sender: LocalTransport, message: Sequence[Buffer]) -> None:
        identity, now = sender.slot.to_bytes(4), time.monotonic()
        header, *payload = message
        try:
            # Payloads are copied: arrays are the caller's again once they have arrived.
            self._core.receive(identity, [header, *map(bytes, payload)], now)
        except Exception:  # noqa: BLE001  # what fails ends its connection, not the others' service
            _log.exception("a message of slot %d failed; its connection is dropped", sender.slot)
            self._core.links.lose(identity)
            sender.core.disconnected(0, now)


class LocalStore(StoreClient):
    """Slot 0's store; `at_slot` gives the others', for several slots in one process.

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
        keys = tuple(msgspec.structs.replace(key, compression=None) for key in description.keys)
        here = {"shards": (ENDPOINT,), "curve_keys": (), "compression": None}
        description = msgspec.structs.replace(description, keys=keys, **here)
        check_description(description)
        self._settings = replace(settings, same_host=False)
        self._job = JobShard(description, 0, tables=tables)
        if snapshot is not None:
            restore(self._job, snapshot)
        self._shard = LocalShard(self._job, self._settings)
        self._clients: dict[int, StoreClient] = {0: self}
        self._is_closed = False
        self._here = OtherThread(self._soon, lambda: self._is_closed)
        super().__init__(description, 0, settings=self._settings, transport=partial(LocalTransport, self._shard, 0))

    def at_slot(self, slot: int) -> LocalSlot:
        """The same store as another slot sees it. Raises ValueError."""
        self._process.check()
        check_slot(self._description, slot)
        with self._shard.working:
            if slot not in self._clients:
                transport = partial(LocalTransport, self._shard, slot)
                made = StoreClient(self._description, slot, settings=self._settings, transport=transport)
                self._clients[slot] = made
                if self._is_closed:
                    made.close()
            return LocalSlot(self, self._clients[slot])

    def capture(
        self, step: int, captured: Callable[[Captured | MissedError], None], *, since: int | None = None
    ) -> None:
        """Calls `captured` with all that there is at version `step`, once it is at it; it has to be quick. What it is
        given is to be released. `since`: of tables what has changed since the capture at that step, if that is
        known."""
        self._soon(lambda: Capture(self._job, step, captured, self._here, since=since))

    def close(self) -> None:
        self._is_closed = True
        for slot, client in [*self._clients.items()]:
            client.close() if slot else super().close()

    def _soon(self, work: Callable[[], object]) -> None:
        """Does it between two pieces of the shard's work."""
        with self._shard.working:
            work()


class LocalSlot(StoreCalls):
    """A local store as one of its slots sees it; closing it closes nothing."""

    def __init__(self, store: LocalStore, client: StoreClient) -> None:
        super().__init__(client._description, client._slot)
        self._memory, self.failed = client._memory, client.failed
        self.hand_to(client._poller.submit, client._poller)
        self.at_slot = store.at_slot
        self._client = client

    def statistics(self) -> ClientStatistics:
        return self._client.statistics()

    def close(self) -> None:
        """Nothing: the store belongs to whoever made it."""
