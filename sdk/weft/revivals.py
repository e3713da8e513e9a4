"""When a daemon that ended is started again: soon at first, later each time, most not for ever. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RevivalLimits:
    """How often and how soon daemons are started again."""

    first_s: float = 0.5
    """The pause before the first start; each further one of a row doubles it."""
    longest_s: float = 10.0
    most: int = 5
    """Starts in a row; a daemon that ends once more is not started again."""
    healthy_s: float = 60.0
    """A life as long as this ends a row."""


DEFAULT_LIMITS = RevivalLimits()


class Revivals:
    """Counts the deaths of each daemon, by name.

    Invariant: `_due` has when a daemon that ended is to be started; one that runs, or ended too often, is not in it.
    """

    def __init__(self, limits: RevivalLimits = DEFAULT_LIMITS, always: Collection[str] = ()) -> None:
        """Daemons of `always` are started again however often they end."""
        self.limits = limits
        self._always = always
        self._rows: dict[str, int] = {}
        self._due: dict[str, float] = {}

    def died(self, name: str, lived_s: float, now: float) -> float | None:
        """The daemon ended after `lived_s`. The pause until it is to be started again; None where it is not."""
        row = 1 if lived_s >= self.limits.healthy_s else self._rows.get(name, 0) + 1
        self._rows[name] = row
        if row > self.limits.most and name not in self._always:
            return None
        pause_s = min(self.limits.first_s * 2.0 ** min(row - 1, 32), self.limits.longest_s)
        self._due[name] = now + pause_s
        return pause_s

    def row(self, name: str) -> int:
        """How often in a row it has ended."""
        return self._rows.get(name, 0)

    def due(self, now: float) -> list[str]:
        """Daemons that are to be started now, each told once."""
        ready = [name for name, at in self._due.items() if at <= now]
        for name in ready:
            del self._due[name]
        return ready
