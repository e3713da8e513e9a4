"""One shard that the daemon was ordered to hold: it is opened on a thread of its own, which may take long."""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from weft.api.agent import ShardAllocation
from weft.api.lifecycle import AllocationEvent
from weft_kvstore.description.records import description_from_json
from weft_kvstore.errors import StoreError
from weft_kvstore.serving.shard_server import ShardServer
from weft_kvstore.shard.job_shard import OpenStoppedError

_log = logging.getLogger("weft.shard")


class Reports(Protocol):
    """What is told of an allocation."""

    def report(self, *, event: AllocationEvent, reason: str | None = None) -> None: ...

    def flush(self, timeout_s: float) -> bool: ...

    def close(self) -> None: ...


class HeldShard:
    """Says READY once it is open, or FAILED; nothing any more after `drop`. Invariant: it is open only while it is
    wanted, but for the moment in which its thread sees that it is not."""

    def __init__(self, server: ShardServer, allocation: ShardAllocation, reporter: Reports) -> None:
        self._server = server
        self._allocation = allocation
        self._reporter = reporter
        self._gone = threading.Event()
        self._lock = threading.Lock()
        """Held while it is told or changed whether it is open, and whether it is wanted."""
        self._is_open = False
        threading.Thread(target=self._open, name=f"open-{allocation.job}", daemon=True).start()

    def drop(self) -> None:
        """It is wanted no more. What is being opened stops soon, and is closed."""
        with self._lock:
            self._gone.set()
            is_open = self._is_open
        if is_open:
            self._close()
        self._reporter.close()

    def leave(self, timeout_s: float) -> None:
        """The daemon ends: the last reports are sent. The jobs end with the process."""
        self._gone.set()
        self._reporter.flush(timeout_s)
        self._reporter.close()

    def _open(self) -> None:
        allocation = self._allocation
        try:
            description = description_from_json(allocation.store.model_dump(mode="json"))
            self._server.open(description, allocation.shard, stopped=self._gone.is_set)
        except OpenStoppedError:
            _log.info("job %s, term %d is not wanted any more", allocation.job, allocation.term)
        except (StoreError, ValueError, MemoryError) as error:
            # msgspec.ValidationError and DescriptionError are ValueErrors.
            reason = f"shard {allocation.shard} of job {allocation.job}: {error or type(error).__name__}"
            _log.error("%s", reason)
            self._tell(AllocationEvent.FAILED, reason)
        else:
            _log.info("shard %d of job %s, term %d is open", allocation.shard, allocation.job, allocation.term)
            if not self._tell(AllocationEvent.READY):
                self._close()

    def _tell(self, event: AllocationEvent, reason: str | None = None) -> bool:
        """Reports, if it is wanted still."""
        with self._lock:
            if self._gone.is_set():
                return False
            self._is_open = event is AllocationEvent.READY
            self._reporter.report(event=event, reason=reason)
            return True

    def _close(self) -> None:
        """A job that is hard to close must not end the daemon of the others: it is closed later."""
        job, term = self._allocation.store.job, self._allocation.term
        try:
            self._server.close_job(job, term)
        except StoreError as error:
            _log.error("job %s, term %d is not closed yet: %s", job, term, error)
        else:
            _log.info("job %s, term %d is closed", job, term)
