"""How fast a link is, from when its frames are acknowledged. Pure: the time is a parameter.

A sample is the bytes acknowledged between a frame's departure and its acknowledgement, over that time (the delivery
rate of Cardwell and others, "BBR: congestion-based congestion control", 2016). The rate is the largest of the last
samples.
A sample of a link that had nothing more to send says little: it counts only where it is larger than the rate so far.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

SAMPLES_KEPT: Final = 8
"""Full samples that the rate is the largest of: a link that became slower is known so many frames later."""

MIN_ELAPSED_S: Final = 1e-5
"""Shorter times are the clock's and the scheduler's, not the link's."""


@dataclass(frozen=True, slots=True)
class Departure:
    """When a frame left, and what had been acknowledged by then."""

    at: float
    delivered: int
    full: bool
    """Whether the credit, not a lack of slices, ended the sending after it."""


class LinkRate:
    """The delivery rate of one direction of a link. `bytes_per_s` is None until a first frame was acknowledged."""

    def __init__(self) -> None:
        self.bytes_per_s: float | None = None
        self.round_trip_s = 0.0
        self._delivered = 0
        self._samples: deque[float] = deque(maxlen=SAMPLES_KEPT)

    def departure(self, now: float, *, full: bool) -> Departure:
        """A mark to keep with a frame that leaves now."""
        return Departure(now, self._delivered, full)

    def acknowledged(self, departure: Departure, nbytes: int, now: float) -> None:
        """A frame of `nbytes` has arrived."""
        self._delivered += nbytes
        elapsed = max(now - departure.at, MIN_ELAPSED_S)
        # The shortest time ever seen: later ones hold the queue that the credit itself makes.
        self.round_trip_s = min(self.round_trip_s, elapsed) if self.bytes_per_s is not None else elapsed
        sample = (self._delivered - departure.delivered) / elapsed
        if departure.full:
            self._samples.append(sample)
            self.bytes_per_s = max(self._samples)
        elif self.bytes_per_s is None or sample > self.bytes_per_s:
            self._samples.append(sample)
            self.bytes_per_s = sample
