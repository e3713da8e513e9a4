"""Deadlines that all lie equally far ahead when they are set, so that they come due in the order set. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Container


class Deadlines:
    """Numbers of operations by when they are due; numbers only, so that what has ended is not kept alive."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[float, int]] = deque()

    def add(self, due: float, number: int) -> None:
        self._waiting.append((due, number))

    def due(self, now: float, still_open: Container[int]) -> list[int]:
        """Takes out those whose time has come and that are open, and at the head those that are not."""
        found: list[int] = []
        while self._waiting and (self._waiting[0][0] <= now or self._waiting[0][1] not in still_open):
            number = self._waiting.popleft()[1]
            if number in still_open:
                found.append(number)
        return found

    def next(self) -> float:
        """When `due` may have something; infinity where nothing waits."""
        return self._waiting[0][0] if self._waiting else float("inf")
