"""The slices of what one sender sends, each encoded once per step."""

from __future__ import annotations

import numpy as np

from weft_kvstore.compression.codec import Codec
from weft_kvstore.store import Array


class SliceEncoder:
    """Encodes runs of slices, whichever are asked for first, and writes the residual. One thread at a time.

    A slice that was encoded for a step must never be again for that step or one before, for its residual has moved on:
    whoever sends keeps the bytes until they are acknowledged.
    """

    def __init__(self, codec: Codec, bounds: Array, residual: Array | None, *, begin: int = 0) -> None:
        """`bounds` (slices + 1, int64): where slices begin, elements. `residual` (all elements) is the caller's and is
        written. `begin` is the first step that there will be."""
        self.codec = codec
        self.residual = residual
        self._bounds = bounds
        self._next = np.full(len(bounds) - 1, begin, np.int64)

    def nbytes(self, first: int, count: int) -> int:
        """The bytes of encoded slices `first` to `first + count`."""
        return int(self.codec.nbytes(np.diff(self._bounds[first : first + count + 1])).sum())

    def encode(
        self, step: int, first: int, count: int, elements: Array, *, scale: float = 1.0, out: Array | None = None
    ) -> Array:
        """The bytes of slices `first` to `first + count`, whose elements these are; as `Codec.encode` does.

        Raises ValueError where one of them was encoded for this step.
        """
        some = slice(first, first + count)
        before = np.flatnonzero(self._next[some] > step)
        if before.size:
            index = first + int(before[0])
            raise ValueError(f"slice {index}, step {step}: encoded for step {int(self._next[index]) - 1} already")
        start, stop = int(self._bounds[first]), int(self._bounds[first + count])
        residual = None if self.residual is None else self.residual[start:stop]
        bounds = self._bounds[first : first + count + 1] - start
        payload = self.codec.encode(elements, bounds, residual, scale=scale, out=out)
        self._next[some] = step + 1
        return payload
