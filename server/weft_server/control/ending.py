"""Which evaluation of a job is the best, and whether the job is to end by them before its last step. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from weft.api.job import KeepBest, StopWhen


class EarlyStop:
    """The evaluations of one job, of which the metric's values at the newest steps are known, and the best one's."""

    def __init__(self, when: KeepBest, known: Mapping[int, float]) -> None:
        self.known = dict(known)
        self._when = when

    @property
    def best(self) -> int | None:
        """The step of the best evaluation, the earliest of equals; None before there is any."""
        return self.best_of(self.known)

    def best_of(self, steps: Collection[int]) -> int | None:
        """The best of these steps, as far as they were evaluated."""
        found = [step for step in sorted(steps) if math.isfinite(self.known.get(step, math.nan))]
        return min(found, key=lambda step: self._cost(self.known[step]), default=None)

    def take(self, step: int, metrics: Mapping[str, float], passed_s: float) -> str | None:
        """An evaluation after `step` steps, `passed_s` after the job's start. Why the job is to stop, if it is."""
        when = self._when
        patience = when.patience if isinstance(when, StopWhen) else None
        value = metrics.get(when.metric, math.nan)
        self.known[step] = value
        best = self.best
        since = sum(1 for each in self.known if best is None or each > best)
        newest = sorted(self.known)[-((patience or 0) + 8) :]
        self.known = {each: self.known[each] for each in self.known if each in newest or each == best}
        if not isinstance(when, StopWhen):
            return None
        if when.reaches is not None and self._cost(value) <= self._cost(when.reaches):
            return f"{when.metric} is {value:.6g}, which reaches {when.reaches:g}"
        if when.patience is not None and best is not None and since >= when.patience:
            return f"{when.metric} has not improved since step {best}, in {since} evaluations"
        if when.after_s is not None and passed_s >= when.after_s:
            return f"{when.after_s:g} s have passed"
        return None

    def _cost(self, value: float) -> float:
        return value if self._when.mode == "min" else -value
