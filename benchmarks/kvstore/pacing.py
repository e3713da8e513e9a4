"""When the bytes of a link of a given speed have left it. Pure: the time is a parameter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DEPTH_BYTES: Final = 64 << 10
"""What a link that was late may send at once: a process that sleeps wakes some 0.1 ms late, and the rate must hold."""


@dataclass(slots=True)
class Pacer:
    """A token bucket, kept as the moment at which all that was handed to the link has left it."""

    bytes_per_s: float
    depth_bytes: int = DEPTH_BYTES
    _free_at: float = float("-inf")

    def leave(self, nbytes: int, now: float) -> float:
        """Hands bytes to the link; returns the moment at which the last of them has left it."""
        earliest = now - self.depth_bytes / self.bytes_per_s
        self._free_at = max(self._free_at, earliest) + nbytes / self.bytes_per_s
        return self._free_at
