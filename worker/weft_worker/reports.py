"""What a run tells the server, and how often."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

from weft.api.agent import LogReport, MetricReport
from weft.api.lifecycle import AllocationEvent

STEP_INTERVAL_S = 0.25
"""Between two reports of the step: four a second are smooth to look at."""


class Reporter(Protocol):
    """The way to the server: `weft.api.reporter.Reporter`, or a test's."""

    def report(
        self,
        *,
        event: AllocationEvent | None = None,
        reason: str | None = None,
        step: int | None = None,
        metrics: Sequence[MetricReport] = (),
        logs: Sequence[LogReport] = (),
    ) -> None:
        """Puts facts in line and returns at once."""

    def upload(self, document: bytes, step: int, final: bool) -> None:
        """Brings the parameters. Raises UploadError."""


class RunReports:
    """A run's facts, as the server wants them. `clock` gives seconds; it decides only how often the step is told."""

    def __init__(self, reporter: Reporter, clock: Callable[[], float]) -> None:
        self._reporter = reporter
        self._clock = clock
        self._step_due = clock()
        self._told_of_no_number = False

    def step(self, finished: int, *, last: bool) -> None:
        """Tells how many steps are finished, unless it was told just now; the last one always."""
        now = self._clock()
        if last or now >= self._step_due:
            self._step_due = now + STEP_INTERVAL_S
            self._reporter.report(step=finished)

    def metrics(self, split: Literal["train", "evaluate"], finished: int, taken: tuple[int, dict[str, float]]) -> None:
        """Tells sums over samples, taken when `finished` steps were."""
        samples, sums = taken
        self._reporter.report(metrics=[MetricReport(split=split, step=finished, samples=samples, sums=sums)])

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

    def upload(self, document: bytes, step: int, *, final: bool) -> None:
        """Brings the parameters. Raises UploadError."""
        self._reporter.upload(document, step, final)
