"""Pulls of a unit that cannot be answered yet. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from weft_kvstore.merging.pull_wait import PullWait

LEAST_WAITS: Final = 64
"""Pulls that may wait before those that were given up are looked for."""


class WaitingPulls:
    """In the order in which they came. Of those that were given up no more are kept than there are others, or
    `LEAST_WAITS`."""

    __slots__ = ("_most", "_waits")

    def __init__(self) -> None:
        self._waits: list[PullWait] = []
        self._most = LEAST_WAITS

    def __len__(self) -> int:
        return len(self._waits)

    def __iter__(self) -> Iterator[PullWait]:
        return iter(self._waits)

    def add(self, wait: PullWait) -> None:
        """One more."""
        self._waits.append(wait)
        if len(self._waits) > self._most:  # A peer that asks and gives up again must not fill the memory.
            self._waits = [one for one in self._waits if not one.dropped]
            self._most = max(2 * len(self._waits), LEAST_WAITS)

    def take(self, is_ready: Callable[[PullWait], bool]) -> list[PullWait]:
        """Those that can be answered now, which wait no more."""
        ready: list[PullWait] = []
        waits, self._waits = self._waits, []
        for wait in waits:
            if wait.dropped:
                continue
            (ready if is_ready(wait) else self._waits).append(wait)
        return ready
