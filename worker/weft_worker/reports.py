"""What a run tells the server, and how often."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import BinaryIO, Literal, Protocol

from weft.agent.trace import TraceRecorder
from weft.agent.transfer import Document
from weft.api.agent import LogReport, MetricReport, SetDone, SnapshotDone
from weft.api.job import Traffic
from weft.api.lifecycle import AllocationEvent
from weft.api.trace import ProcessTrace
from weft_kvstore.store import ClientStatistics
from weft_worker.metrics import TakenSums

STEP_INTERVAL_S = 0.5
"""Between two reports of the step. The server tells of one a second; each costs all processes some milliseconds."""


class Reporter(Protocol):
    """The way to the server: `weft.agent.reporter.Reporter`, or a test's."""

    def report(
        self,
        *,
        event: AllocationEvent | None = None,
        reason: str | None = None,
        step: int | None = None,
        metrics: Sequence[MetricReport] = (),
        logs: Sequence[LogReport] = (),
        traffic: Traffic | None = None,
        sets: Sequence[SetDone] = (),
        snapshot: SnapshotDone | None = None,
        trace: ProcessTrace | None = None,
    ) -> None:
        """Puts facts in line and returns at once."""

    def upload(self, document: Document, step: int, final: bool) -> None:
        """Brings the parameters. Raises UploadError, and what making the document raises."""

    def download(self, what: str, into: BinaryIO, stop: threading.Event) -> None:
        """Writes a document of the allocation to a file. Raises DownloadError, OSError."""


class RunReports:
    """A run's facts, as the server wants them. `clock` gives seconds; it decides only how often the step is told.

    `statistics` are those of the run's store, whose bytes go with the steps and the metrics.
    """

    def __init__(
        self, reporter: Reporter, clock: Callable[[], float], statistics: Callable[[], ClientStatistics]
    ) -> None:
        self._reporter = reporter
        self._clock = clock
        self._statistics = statistics
        self._step_due = clock()
        self._untold: int | None = None

    def step(self, finished: int, *, last: bool) -> None:
        """Tells how many steps are finished, unless it was told just now; the last one always."""
        self._untold = finished
        now = self._clock()
        if last or now >= self._step_due:
            self._step_due, self._untold = now + STEP_INTERVAL_S, None
            self._reporter.report(step=finished, traffic=self._traffic())

    def metrics(self, split: Literal["train", "evaluate"], finished: int, taken: TakenSums, bad_data: str = "") -> None:
        """Tells sums over samples, taken when `finished` steps were."""
        report = MetricReport(
            split=split,
            step=finished,
            samples=taken.samples,
            sums=taken.sums,
            not_finite=taken.not_finite,
            bad_data=bad_data if taken.not_finite else "",
        )
        self._reporter.report(metrics=[report], traffic=self._traffic())

    def end(self) -> None:
        """Tells how many steps are finished, and the bytes, however the run ends."""
        self._reporter.report(step=self._untold, traffic=self._traffic())

    def trace(self, recorder: TraceRecorder) -> None:
        """Tells what was noted of the traced steps."""
        for part in recorder.take():
            self._reporter.report(trace=part)

    def set_done(self, done: SetDone) -> None:
        """Tells that ordered parameters were set, or why they were not."""
        self._reporter.report(sets=[done])

    def log(self, level: Literal["debug", "info", "warning", "error"], message: str) -> None:
        """Tells a line of the job's log."""
        self._reporter.report(logs=[LogReport(level=level, message=message)])

    def upload(self, document: Document, step: int, *, final: bool) -> None:
        """Brings the parameters. Raises UploadError, StoreError."""
        self._reporter.upload(document, step, final)

    def download(self, what: str, into: BinaryIO, stop: threading.Event) -> None:
        """Writes a document of the allocation to a file. Raises DownloadError, OSError."""
        self._reporter.download(what, into, stop)

    def _traffic(self) -> Traffic:
        """Both ways to the shards count: sockets, and memory shared with those of this host."""
        counted = self._statistics()
        return Traffic(
            sent_bytes=counted.bytes_sent + counted.shared_bytes_sent,
            received_bytes=counted.bytes_received + counted.shared_bytes_received,
        )
