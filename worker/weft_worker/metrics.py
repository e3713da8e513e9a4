"""Metrics as sums over samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class TakenSums(NamedTuple):
    """Sums over `samples`; `not_finite` has for a metric the first step of which it was no finite number."""

    samples: int
    sums: dict[str, float]
    not_finite: dict[str, int]


class MetricSums:
    """Means over batches, added up as sums over samples. The names are fixed, so that every report has them all."""

    def __init__(self, names: Iterable[str]) -> None:
        self._sums = dict.fromkeys(names, 0.0)
        self._samples = 0
        self._not_finite: dict[str, int] = {}
        self._before = dict(self._sums), 0, dict(self._not_finite)
        self._newest: dict[str, float] = {}

    def add(self, means: Mapping[str, float], samples: int, finished: int) -> bool:
        """Adds a batch of `samples`, whose means are `means`: of the step that makes `finished` ones. Whether all of
        them are finite."""
        are_finite = True
        for name in self._sums:
            self._sums[name] += means[name] * samples
            if not math.isfinite(means[name]):
                self._not_finite.setdefault(name, finished)
                are_finite = False
        self._samples += samples
        return are_finite

    def mark(self) -> None:
        """What is added from here on belongs to one step."""
        self._before = dict(self._sums), self._samples, dict(self._not_finite)

    def drop(self) -> None:
        """What was added since the mark does not count: its step was skipped."""
        sums, self._samples, not_finite = self._before
        self._sums, self._not_finite = dict(sums), dict(not_finite)

    def note(self, name: str, value: float) -> None:
        """A number of a step that is no mean over samples: the newest one is told."""
        self._newest[name] = value

    def take(self) -> TakenSums:
        """What was added since the last time; starts again from zero."""
        newest = {name: value * self._samples for name, value in self._newest.items()}
        taken = TakenSums(self._samples, {**self._sums, **newest}, self._not_finite)
        self._samples, self._not_finite = 0, {}
        self._sums = dict.fromkeys(self._sums, 0.0)
        return taken
