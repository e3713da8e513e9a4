"""Pulls of a unit that cannot be answered yet. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Final

from weft_kvstore.merging.pull_wait import PullWait

LEAST_WAITS: Final = 64
"""Pulls that may wait before those that were given up are looked for."""


class WaitingPulls:
    """By the version that they wait for, and in the order in which they came. Of those that were given up no more are
    kept than there are others, or `LEAST_WAITS`."""

    __slots__ = ("_came", "_most", "_waits")

    def __init__(self) -> None:
        self._waits: list[tuple[int, int, PullWait]] = []
        self._most = LEAST_WAITS
        self._came = 0

    def __len__(self) -> int:
        return len(self._waits)

    def __iter__(self) -> Iterator[PullWait]:
        return (wait for _, _, wait in sorted(self._waits))

    def add(self, wait: PullWait, version: int) -> None:
        """One more, which cannot be answered before a version."""
        self._came += 1
        heapq.heappush(self._waits, (version, self._came, wait))
        if len(self._waits) > self._most:  # A peer that asks and gives up again must not fill the memory.
            self._waits = [one for one in self._waits if not one[2].dropped]
            heapq.heapify(self._waits)
            self._most = max(2 * len(self._waits), LEAST_WAITS)

    def take(self, version: int, is_ready: Callable[[PullWait], bool]) -> list[PullWait]:
        """Those that can be answered at a version, which wait no more. Others than of it and before are not looked
        at."""
        ready: list[PullWait] = []
        kept: list[tuple[int, int, PullWait]] = []
        while self._waits and self._waits[0][0] <= version:
            one = heapq.heappop(self._waits)
            wait = one[2]
            if wait.dropped:
                continue
            if is_ready(wait):
                ready.append(wait)
            else:
                kept.append(one)
        for one in kept:
            heapq.heappush(self._waits, one)
        return ready
