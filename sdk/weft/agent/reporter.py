"""Brings the facts about one allocation to the server, in order, without holding up who reports them."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO

import httpx

from weft.agent.retry import UnreachableError, Verdict, retried, verdict
from weft.agent.transfer import Document, Transfer, UploadError
from weft.api.agent import LogReport, MetricReport, Report, SetDone, SnapshotDone
from weft.api.job import Traffic
from weft.api.lifecycle import AllocationEvent
from weft.api.trace import ProcessTrace

__all__ = ["Reporter", "UploadError"]

_log = logging.getLogger("weft.reporter")

INTERVAL_S = 0.5
"""Between two posts that nobody waits for. The server tells of a step once a second, and each post costs it and the
agent some milliseconds, which a small model's steps would rather have."""
POST_TIMEOUT_S = 10.0
MOST_LINES = 1000
"""Metrics and logs, each, in one post: bounds its size."""
MOST_SETS = 64
"""Sets in one post."""
MOST_CHARACTERS = 1 << 20
"""Of log lines in one post, but for those that are reported together."""
MOST_WAITING_LOGS = 10_000
"""Log lines kept while the server cannot be reached; the oldest go first."""


@dataclass
class _Part:
    """Facts that go in one report. An event ends it, and so does what became of a snapshot: what is reported later goes
    into the next part."""

    event: AllocationEvent | None = None
    reason: str | None = None
    lost: bool = False
    endpoint: str | None = None
    step: int | None = None
    metrics: list[MetricReport] = field(default_factory=list)
    logs: list[LogReport] = field(default_factory=list)
    traffic: Traffic | None = None
    sets: list[SetDone] = field(default_factory=list)
    snapshot: SnapshotDone | None = None
    trace: ProcessTrace | None = None

    @property
    def is_full(self) -> bool:
        lines = len(self.metrics) >= MOST_LINES or len(self.logs) >= MOST_LINES or len(self.sets) >= MOST_SETS
        characters = sum(len(line.message) for line in self.logs)
        ends = self.event is not None or self.snapshot is not None
        return lines or characters >= MOST_CHARACTERS or ends

    @property
    def is_urgent(self) -> bool:
        """Whether the job, or whoever has set parameters, waits for it now."""
        return bool(self.event is not None or self.snapshot is not None or self.sets)

    @property
    def is_waited_for(self) -> bool:
        """Whether the job cannot come to its end, or to the right one, without it."""
        return bool(self.is_urgent or self.metrics)


class Reporter:
    """Facts in order, on a thread of its own. `client` is shared and not closed.

    While the server is away facts wait in line; the report that was under way comes again under its number. Where the
    server refuses one, the allocation fails, with what it said, unless the job does without.
    """

    def __init__(self, client: httpx.Client, allocation_id: str, term: int) -> None:
        self._client = client
        self._path = f"/v1/allocations/{allocation_id}"
        self._term = term
        self._changed = threading.Condition()
        self._parts: deque[_Part] = deque()
        self._posting = False
        self._closed = threading.Event()
        self._transfer = Transfer(client, self._path, term, self._warn)
        self._thread = threading.Thread(target=self._run, name=f"report-{allocation_id}", daemon=True)
        self._thread.start()

    def report(
        self,
        *,
        event: AllocationEvent | None = None,
        reason: str | None = None,
        lost: bool = False,
        endpoint: str | None = None,
        step: int | None = None,
        metrics: Sequence[MetricReport] = (),
        logs: Sequence[LogReport] = (),
        traffic: Traffic | None = None,
        sets: Sequence[SetDone] = (),
        snapshot: SnapshotDone | None = None,
        trace: ProcessTrace | None = None,
    ) -> None:
        """Puts facts in line and returns at once. Within one call, everything else comes before the event."""
        with self._changed:
            if self._closed.is_set():
                return
            if not self._parts or self._parts[-1].is_full or (trace is not None and self._parts[-1].trace is not None):
                self._parts.append(_Part())
            part = self._parts[-1]
            part.step = step if step is not None else part.step
            part.metrics += metrics
            part.logs += logs
            part.traffic = traffic if traffic is not None else part.traffic
            part.sets += sets
            part.event, part.reason, part.lost, part.endpoint = event, reason, lost, endpoint
            part.snapshot, part.trace = snapshot, trace or part.trace
            self._bound_logs()
            self._changed.notify_all()

    def upload(self, document: bytes | Document, step: int, final: bool, *, deadline_s: float | None = None) -> None:
        """Brings the parameters at `step`, a safetensors document. Raises UploadError: refused, out of time, closed.

        Without a deadline a server has two minutes to come back, more for a large document; the final ones are tried
        until the job is given up.
        """
        brought = Document.of(document) if isinstance(document, bytes) else document
        self._transfer.upload(brought, step, final, self._closed, deadline_s)

    def download(self, what: str, into: BinaryIO, stop: threading.Event) -> None:
        """Writes a document of the allocation, `given` or `sets/3`, to a file. Raises DownloadError, OSError."""
        self._transfer.download(what, into, stop)

    def flush(self, timeout_s: float) -> bool:
        """Waits until all that was reported is accepted or refused. Whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._parts and not self._posting, timeout_s)

    def close(self) -> None:
        """Drops what is not sent yet (flush before) and ends the thread. Idempotent."""
        with self._changed:
            self._closed.set()
            self._parts.clear()
            self._changed.notify_all()

    def _warn(self, message: str) -> None:
        self.report(logs=[LogReport(level="warning", message=message[:4096])])

    def _bound_logs(self) -> None:
        if len(self._parts) > 1 and sum(len(part.logs) for part in self._parts) > MOST_WAITING_LOGS:
            oldest = next(part for part in self._parts if part.logs)
            lost = len(oldest.logs)
            oldest.logs = []
            _log.warning("%s: %d log lines dropped, the server cannot be reached", self._path, lost)

    def _run(self) -> None:
        seq = 0
        due = 0.0
        while (part := self._next(due)) is not None:
            seq += 1
            report = Report(term=self._term, seq=seq, **vars(part))
            try:
                post = partial(self._post, report.model_dump_json())
                found, answer = retried(post, self._closed, _log, f"{self._path}/reports")
            except UnreachableError:
                found = Verdict.UNWANTED  # it was closed
            if found is Verdict.UNWANTED:
                self.close()
            elif found is Verdict.REFUSED:
                self._refused(part, answer)
            else:
                due = time.monotonic() + INTERVAL_S
            with self._changed:
                self._posting = False
                self._changed.notify_all()

    def _next(self, due: float) -> _Part | None:
        """The next facts, once they may go: at once where one is urgent, else not before `due`. None when closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed.is_set() or bool(self._parts))
            self._changed.wait_for(
                lambda: self._closed.is_set() or any(part.is_urgent for part in self._parts) or len(self._parts) > 1,
                max(0.0, due - time.monotonic()),
            )
            if self._closed.is_set():
                return None
            self._posting = True
            return self._parts.popleft()

    def _refused(self, part: _Part, answer: str) -> None:
        """The same report would be refused again. What the server waits for must not be lacking without a word."""
        what = f"the server refused a report of this process, {answer}"
        if part.is_waited_for and part.event is not AllocationEvent.FAILED:
            with self._changed:
                self._parts.clear()
            self.report(event=AllocationEvent.FAILED, reason=what)
        elif not part.logs:
            self._warn(what)

    def _post(self, body: str) -> tuple[Verdict, str]:
        """What became of it, and the answer in words. Raises UnreachableError."""
        try:
            response = self._client.post(
                f"{self._path}/reports",
                content=body,
                headers={"Content-Type": "application/json"},
                timeout=POST_TIMEOUT_S,
            )
        except httpx.HTTPError as error:
            raise UnreachableError(f"{type(error).__name__}: {error}") from error
        found, answer = verdict(response), f"{response.status_code}: {response.text[:500]}"
        if found is Verdict.AGAIN:
            raise UnreachableError(f"answered by {answer}")
        if found is not Verdict.TAKEN:
            _log.warning("%s: a report was answered by %s", self._path, answer)
        return found, answer
