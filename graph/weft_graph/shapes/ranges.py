"""How many numbers Range gives."""

from __future__ import annotations

import math


def range_length(start: float, limit: float, delta: float) -> int:
    """The count of numbers from `start` to before `limit` by `delta`. Raises ValueError where there is none such."""
    if delta == 0 or not all(math.isfinite(number) for number in (start, limit, delta)):
        raise ValueError(f"there is no range from {start} to {limit} by {delta}")
    if all(isinstance(number, int) for number in (start, limit, delta)):
        return max(int(-((limit - start) // -delta)), 0)
    return max(math.ceil((limit - start) / delta), 0)
