"""Sums of squares in float64 in one order that nothing changes: not the machine, not the threads, not a library.

Element i is added in lane i modulo `LANES`, each lane from its first element on; then halves of the lanes are added
until one is left. Each of those additions is one of IEEE's, so the bits are a function of the elements alone.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from weft_kernels.kernel import Array

LANES: Final = 1 << 13
"""A power of two, of which `CACHE_ELEMENTS` is a multiple. Measured over 2^11 to 2^16 on one core: 2^23 float32 take
20, 15, 8.5, 9.2, 9.5 and 8.9 ms."""


class SquareSum:
    """The sum of squares of what is added to it, part by part; a part's length is a multiple of `LANES`, except the
    last one's."""

    __slots__ = ("_lanes", "_wide")

    def __init__(self) -> None:
        self._lanes = np.zeros(LANES)
        self._wide = np.empty(LANES)

    def add(self, values: Array) -> None:
        """Of floats of any type (n)."""
        for start in range(0, len(values), LANES):
            part = values[start : start + LANES]
            wide, lanes = self._wide[: len(part)], self._lanes[: len(part)]
            wide[...] = part
            np.multiply(wide, wide, out=wide)
            np.add(lanes, wide, out=lanes)

    def root(self) -> float:
        """The norm of all that was added: the root of the sum."""
        lanes = self._lanes
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = lanes[:half] + lanes[half:]
        return math.sqrt(float(lanes[0]))
