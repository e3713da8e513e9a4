"""The metrics of one job: added up over its workers, told once, and what they say of its end. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from weft.api.agent import MetricReport
from weft.api.event import MetricTaken
from weft_server.early_stop import EarlyStop
from weft_server.memory import Parts, RunMemory
from weft_server.metric_sums import MetricSums
from weft_server.moment import Moment
from weft_server.not_finite import diverged, told_not_finite, wrong_since
from weft_server.plan import JobPlan


class RunMetrics:
    """`diverged` says that a loss was not finite which has to be; `warning` which metrics became so in what was taken
    last; `stops` why its evaluations end the job before its last step."""

    def __init__(
        self, plan: JobPlan, parts: Parts, *, memory: RunMemory, written: Mapping[str, str], now: Moment
    ) -> None:
        """What an earlier process has `written` is taken up."""
        self.diverged: str | None = None
        self.warning: str | None = None
        self.stops: str | None = None
        self._plan = plan
        self._parts = parts
        self._sums = MetricSums(plan.workers, parts, written)
        best_by = plan.stop_when or plan.keep_best
        self._early = None if best_by is None else EarlyStop(best_by, memory.evaluated)
        self._not_finite = memory.not_finite
        self._told = dict(memory.measured)
        self._ran_s, self._counted = memory.ran_s, now.seconds

    @property
    def best(self) -> int | None:
        """The step of the best evaluation, where the job asks for that."""
        return None if self._early is None else self._early.best

    @property
    def facts(self) -> dict[str, Any]:
        """What is to be written down: see `RunMemory`."""
        return {
            "evaluated": {} if self._early is None else dict(self._early.known),
            "not_finite": self._not_finite,
            "measured": dict(self._told),
            "ran_s": self._ran_s,
        }

    def start(self, now: Moment) -> None:
        """The job runs for the first time: seconds count from here."""
        self._counted = now.seconds

    def begin_anew(self, plan: JobPlan, step: int) -> None:
        """The job goes on from that step, with as many workers as its plan says now."""
        self._sums.clear()
        self._plan = plan
        self._sums = MetricSums(plan.workers, self._parts)
        self._not_finite = {name: at for name, at in self._not_finite.items() if at <= step}

    def take(
        self, slot: int, report: MetricReport, now: Moment, *, is_stopping: bool
    ) -> tuple[dict[str, float], MetricTaken | None] | None:
        """(newest values by `SPLIT/NAME`, what is told for the first time), once all slots have reported a step."""
        taken = self._sums.add(slot, report)
        if taken is None:
            return None
        newest = {f"{taken.split}/{name}": value for name, value in taken.values.items()}
        before, self._not_finite = self._not_finite, wrong_since(self._not_finite, taken)
        if taken.step <= self._told.get(taken.split, -1):  # What is done again was told.
            return newest, None
        self._told[taken.split] = taken.step
        if taken.split == "train":
            self._look_at_loss(taken)
        new = {name: step for name, step in self._not_finite.items() if name not in before}
        self.warning = None if self.diverged else told_not_finite(newest, new, taken.bad_data)
        # Once it stops, how many more evaluations are told depends on chance.
        if taken.split == "evaluate" and self._early is not None and not is_stopping:
            self._ran_s, self._counted = self._ran_s + now.seconds - self._counted, now.seconds
            why = self._early.take(taken.step, taken.values, self._ran_s)
            self.stops = why if taken.step < self._plan.steps else None
        return newest, taken

    def wrong(self, newest: Mapping[str, float]) -> str | None:
        """Which of the newest metrics are not finite, and since when."""
        told = told_not_finite(newest, self._not_finite)
        return f"trained, but {told}" if told else None

    def _look_at_loss(self, taken: MetricTaken) -> None:
        loss, commit = taken.values.get("loss", 0.0), self._plan.commit
        is_skipped = commit is not None and commit.loss_scaling is not None
        if self._plan.on_nan == "fail" and not math.isfinite(loss) and not is_skipped:
            self.diverged = diverged(loss, self._not_finite.get("train/loss", taken.step), taken.bad_data)
