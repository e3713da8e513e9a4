"""Hyper-parameters that were changed while a job runs, each from a step on. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping


class HyperTimeline:
    """`count` grows with each change. Of changes from the same step the later one holds.

    Invariant: `_sums[i]` is what holds from `_steps[i]` on, that of all changes up to number i.
    """

    __slots__ = ("_changes", "_steps", "_sums", "count")

    def __init__(self) -> None:
        self.count = 0
        self._steps: list[int] = []
        self._changes: list[dict[str, float]] = []
        self._sums: list[dict[str, float]] = []

    def __len__(self) -> int:
        """How many changes it keeps."""
        return len(self._steps)

    def set(self, step: int, numbers: Mapping[str, float]) -> None:
        """These hold from `step` on, until a change from a later step."""
        place = bisect_right(self._steps, step)
        self._steps.insert(place, step)
        self._changes.insert(place, dict(numbers))
        del self._sums[place:]
        for change in self._changes[place:]:
            self._sums.append({**(self._sums[-1] if self._sums else {}), **change})
        self.count += 1

    def at(self, step: int) -> Mapping[str, float]:
        """What was changed and holds at a step."""
        place = bisect_right(self._steps, step)
        return self._sums[place - 1] if place else {}

    def forget(self, before: int) -> None:
        """No step before this one is asked for any more: what only those need is dropped."""
        place = bisect_right(self._steps, before) - 1
        if place > 0:
            self._changes[place] = self._sums[place]
            del self._steps[:place], self._changes[:place], self._sums[:place]
