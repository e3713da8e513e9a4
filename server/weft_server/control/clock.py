"""A point in time, twice: by the calendar for people, in seconds that never jump for limits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class Timestamp:
    """`at` is what events carry; `seconds` is compared with other moments of the same clock."""

    at: datetime
    seconds: float


Clock = Callable[[], Timestamp]


LONGEST_STEP_S = 1.0
"""A reading is several times as frequent in a process that runs."""


class ProcessClock:
    """Its seconds are those in which this process ran: between two readings at most `LONGEST_STEP_S` pass.

    What a server that stood still did not hear was not silent, and what it waited for is not late. Nobody's deadline
    passes meanwhile. It is read a few times a second, on one thread.
    """

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        calendar: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._monotonic = monotonic
        self._calendar = calendar
        self._read = self._seconds = monotonic()

    def __call__(self) -> Timestamp:
        read = self._monotonic()
        self._seconds += min(read - self._read, LONGEST_STEP_S)
        self._read = read
        return Timestamp(self._calendar(), self._seconds)
