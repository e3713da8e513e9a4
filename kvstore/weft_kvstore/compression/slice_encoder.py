"""The slices of what one sender sends, each encoded once per step."""

from __future__ import annotations

import numpy as np

from weft_kernels.kernel import Array
from weft_kvstore.compression.codec import Codec


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
        return int(self.codec.nbytes(np.diff(self._run(first, count))).sum())

    def encode(
        self, step: int, first: int, count: int, elements: Array, *, scale: float = 1.0, out: Array | None = None
    ) -> Array:
        """The bytes of slices `first` to `first + count`, whose elements these are; as `Codec.encode` does.

        Raises ValueError where one of them was encoded for this step.
        """
        self._check(step, first, count)
        start, stop = int(self._bounds[first]), int(self._bounds[first + count])
        residual = None if self.residual is None else self.residual[start:stop]
        payload = self.codec.encode(elements, self._run(first, count), residual, scale=scale, out=out)
        self._next[first : first + count] = step + 1
        return payload

    def encode_nothing(self, step: int, first: int, count: int) -> Array:
        """The bytes of zeros, for a step that is skipped or that nobody contributed to: what is owed stays owed.

        Raises ValueError as `encode` does.
        """
        self._check(step, first, count)
        run = self._run(first, count)
        payload = self.codec.encode(np.zeros(int(run[-1]), self.codec.dtype), run)
        self._next[first : first + count] = step + 1
        return payload

    def _run(self, first: int, count: int) -> Array:
        """The bounds of a run, from 0."""
        run: Array = self._bounds[first : first + count + 1] - self._bounds[first]
        return run

    def _check(self, step: int, first: int, count: int) -> None:
        reached = self._next[first : first + count]
        if count < 1 or reached.size != count:
            raise ValueError(f"slices {first} to {first + count - 1}: there are {self._next.size}")
        before = np.flatnonzero(reached > step)
        if before.size:
            index = first + int(before[0])
            raise ValueError(f"slice {index}, step {step}: encoded for step {int(self._next[index]) - 1} already")
