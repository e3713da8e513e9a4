"""Who computes the pieces of an update. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

Task = Callable[[], None]


class Computing(Protocol):
    """Carries out tasks that do not depend on each other, as many as `lanes` at the same time."""

    lanes: int

    def run(self, tasks: Sequence[Task]) -> None:
        """Carries out all of them, in any order, and returns when all have ended. Raises what the first one raised."""


class InTurn:
    """One task after the other."""

    lanes = 1

    def run(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            task()
