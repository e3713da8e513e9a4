"""What a run tells the server, and how often."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO, Literal, Protocol

from weft.agent.document import Document
from weft.api.agent import LogReport, MetricReport, SetDone, SnapshotDone
from weft.api.job import Traffic
from weft.api.lifecycle import AllocationEvent
from weft_kvstore.statistics import ClientStatistics

STEP_INTERVAL_S = 0.25
"""Between two reports of the step: four a second are smooth to look at."""


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
        self._told_of_no_number = False

    def step(self, finished: int, *, last: bool) -> None:
        """Tells how many steps are finished, unless it was told just now; the last one always."""
        now = self._clock()
        if last or now >= self._step_due:
            self._step_due = now + STEP_INTERVAL_S
            self._reporter.report(step=finished, traffic=self._traffic())

    def metrics(self, split: Literal["train", "evaluate"], finished: int, taken: tuple[int, dict[str, float]]) -> None:
        """Tells sums over samples, taken when `finished` steps were."""
        samples, sums = taken
        report = MetricReport(split=split, step=finished, samples=samples, sums=sums)
        self._reporter.report(metrics=[report], traffic=self._traffic())

    def traffic(self) -> None:
        """Tells the bytes alone, at a run's end."""
        self._reporter.report(traffic=self._traffic())

    def set_done(self, done: SetDone) -> None:
        """Tells that ordered parameters were set, or why they were not."""
        self._reporter.report(sets=[done])

    def check_finite(self, slot: int, finished: int, means: Mapping[str, float]) -> None:
        """Looks at a step's metrics: the first one that is no finite number is told as a warning, the others are not.

        Training goes on: a loss may overflow once and come back, and stopping is for people to decide.
        """
        wrong = [f"{name} is {mean}" for name, mean in means.items() if not math.isfinite(mean)]
        if wrong and not self._told_of_no_number:
            self._told_of_no_number = True
            self.log("warning", f"slot {slot}: {', '.join(wrong)} at step {finished}; later ones are not told")

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
        counted = self._statistics()
        return Traffic(sent_bytes=counted.bytes_sent, received_bytes=counted.bytes_received)
