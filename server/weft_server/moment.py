"""A point in time, twice: by the calendar for people, in seconds that never jump for limits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class Moment:
    """`at` is what events carry; `seconds` is compared with other moments of the same process."""

    at: datetime
    seconds: float


Clock = Callable[[], Moment]


def system_clock() -> Moment:
    return Moment(datetime.now(UTC), time.monotonic())
