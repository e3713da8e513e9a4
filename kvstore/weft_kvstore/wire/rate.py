"""How fast a link is, from when its frames are acknowledged. Pure: the time is a parameter.

A sample is the bytes acknowledged within a window, over its time. A window has at least four times the credit: an
acknowledgement may wait behind the other direction's data and come together with others, so that what one frame tells
is far off, and a rate that is too high would make the credit, and with it that queue, larger still. The rate is the
median of the last windows.
A window in which the link had nothing more to send says little: it counts only where it is larger than the rate so far.
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import Final, NamedTuple

WINDOWS_KEPT: Final = 5
"""Windows that the rate is the median of: a link that became slower is known three of them later."""

GROWTH: Final = 1.25
"""Two windows in a row that are so much faster are the link's rate: the credit was what held it back."""

WINDOW_CREDITS: Final = 4
"""How often the credit passes in a window."""

LEAST_WINDOW_BYTES: Final = 256 << 10
"""What a window has at least that ends early, because everything was acknowledged."""

MIN_ELAPSED_S: Final = 1e-5
"""Shorter times are the clock's and the scheduler's, not the link's."""


class Departure(NamedTuple):
    """When a frame left."""

    at: float


class LinkRate:
    """The delivery rate of one direction of a link. `bytes_per_s` is None until a first window has ended, and
    `round_trip_s` is the shortest time ever seen: later ones hold the queue that the credit itself makes.

    A window begins when one ends, or when a frame leaves while none is under way.
    """

    def __init__(self) -> None:
        self.bytes_per_s: float | None = None
        self.round_trip_s = 0.0
        self._windows: deque[float] = deque(maxlen=WINDOWS_KEPT)
        self._under_way = 0
        self._begun = 0.0
        self._bytes = 0
        self._starved = False
        self._seen = False

    def departure(self, now: float, *, full: bool) -> Departure:
        """A mark to keep with a frame that leaves now; `full`: the credit, not a lack of slices, ends the sending."""
        if not self._under_way:
            self._begin(now)
        self._under_way += 1
        self._starved = self._starved or not full
        return Departure(now)

    def acknowledged(self, departure: Departure, nbytes: int, now: float, credit: int) -> None:
        """A frame of `nbytes` has arrived; `credit` is what may be under way at this moment."""
        self._under_way -= 1
        self._bytes += nbytes
        trip = max(now - departure.at, MIN_ELAPSED_S)
        self.round_trip_s = min(self.round_trip_s, trip) if self._seen else trip
        self._seen = True
        whole = self._bytes >= WINDOW_CREDITS * credit
        if whole or (not self._under_way and self._bytes >= LEAST_WINDOW_BYTES):
            self._end(now, says_all=whole and not self._starved)

    def passed_by(self) -> None:
        """A frame has arrived that says nothing of the link: it had no bytes, or they passed through no socket."""
        self._under_way -= 1

    def _begin(self, now: float) -> None:
        self._begun, self._bytes, self._starved = now, 0, False

    def _end(self, now: float, *, says_all: bool) -> None:
        sample = self._bytes / max(now - self._begun, MIN_ELAPSED_S)
        if says_all or self.bytes_per_s is None or sample > self.bytes_per_s:
            last = self._windows[-1] if self._windows else sample
            if self.bytes_per_s is not None and min(last, sample) > GROWTH * self.bytes_per_s:
                self._windows.clear()
                self._windows.append(last)
            self._windows.append(sample)
            self.bytes_per_s = statistics.median_high(self._windows)
        self._begin(now)
