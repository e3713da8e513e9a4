"""Hyper-parameters that were changed while a job runs, each from a step on. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import NamedTuple


class _Changes(NamedTuple):
    """Number i is from `steps[i]` on, and `sums[i]` is what holds then: that of all up to it. Nothing is ever written:
    who reads on another thread has one of these, or the next."""

    steps: tuple[int, ...] = ()
    changes: tuple[Mapping[str, float], ...] = ()
    sums: tuple[Mapping[str, float], ...] = ()


class HyperTimeline:
    """`count` grows with each change, and `known_from` is the first step of which it has not forgotten anything. Of
    changes from the same step the later one holds. May be read on any thread while one other changes it."""

    __slots__ = ("_now", "count", "known_from")

    def __init__(self) -> None:
        self.count = 0
        self.known_from = 0
        self._now = _Changes()

    def __len__(self) -> int:
        """How many changes it keeps."""
        return len(self._now.steps)

    def set(self, step: int, numbers: Mapping[str, float]) -> None:
        """These hold from `step` on, until a change from a later step."""
        now = self._now
        index = bisect_right(now.steps, step)
        later = (dict(numbers), *now.changes[index:])
        sums = list(now.sums[:index])
        for change in later:
            sums.append({**(sums[-1] if sums else {}), **change})
        self._now = _Changes((*now.steps[:index], step, *now.steps[index:]), now.changes[:index] + later, tuple(sums))
        self.count += 1

    def at(self, step: int) -> Mapping[str, float]:
        """What was changed and holds at a step."""
        now = self._now
        index = bisect_right(now.steps, step)
        return now.sums[index - 1] if index else {}

    def forget(self, before: int) -> None:
        """No step before this one is asked for any more: what only those need is dropped."""
        now = self._now
        index = bisect_right(now.steps, before) - 1
        if index > 0:
            self.known_from = now.steps[index]
            self._now = _Changes(now.steps[index:], (now.sums[index], *now.changes[index + 1 :]), now.sums[index:])

    def keep(self, most: int) -> None:
        """Forgets the earliest changes beyond so many."""
        steps = self._now.steps
        if len(steps) > most:
            self.forget(steps[-most])
