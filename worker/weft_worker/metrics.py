"""Metrics as sums over samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class MetricSums:
    """Means over batches, added up as sums over samples. The names are fixed, so that every report has them all."""

    def __init__(self, names: Iterable[str]) -> None:
        self._sums = dict.fromkeys(names, 0.0)
        self._samples = 0
        self._before = dict(self._sums), 0
        self._newest: dict[str, float] = {}

    def add(self, means: Mapping[str, float], samples: int) -> None:
        """Adds a batch of `samples`, whose means are `means`."""
        for name in self._sums:
            self._sums[name] += means[name] * samples
        self._samples += samples

    def mark(self) -> None:
        """What is added from here on belongs to one step."""
        self._before = dict(self._sums), self._samples

    def drop(self) -> None:
        """What was added since the mark does not count: its step was skipped."""
        sums, self._samples = self._before
        self._sums = dict(sums)

    def note(self, name: str, value: float) -> None:
        """A number of a step that is no mean over samples: the newest one is told."""
        self._newest[name] = value

    def take(self) -> tuple[int, dict[str, float]]:
        """(samples, sums) since the last time; starts again from zero."""
        newest = {name: value * self._samples for name, value in self._newest.items()}
        taken = self._samples, {**self._sums, **newest}
        self._samples = 0
        self._sums = dict.fromkeys(self._sums, 0.0)
        return taken
