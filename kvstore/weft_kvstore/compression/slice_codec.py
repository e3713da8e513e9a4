"""A codec over the slices of a lot, a run or a key: where their bytes lie, and back to elements. Pure."""

from __future__ import annotations

import numpy as np

from weft_kernels.kernel import Array
from weft_kvstore.arrays.buffers import Buffer
from weft_kvstore.compression.codec import Codec


class SliceCodec:
    """`bounds` (slices + 1, int64): where slices begin, elements from 0; `begins` (slices + 1, int64): where their
    bytes do. Nothing in it changes."""

    __slots__ = ("begins", "bounds", "codec")

    def __init__(self, codec: Codec, bounds: Array) -> None:
        self.codec = codec
        self.bounds = bounds
        self.begins = np.zeros(len(bounds), np.int64)
        np.cumsum(codec.nbytes(np.diff(bounds)), out=self.begins[1:])

    def nbytes(self, first: int, stop: int) -> int:
        """The bytes of slices `first` to before `stop`."""
        return int(self.begins[stop] - self.begins[first])

    def encode(self, first: int, stop: int, elements: Array, out: Array) -> None:
        """The bytes of these slices, which keep no residual, to `out` (uint8)."""
        self.codec.encode(elements, self._run(first, stop), out=out)

    def decode(self, first: int, stop: int, payload: Buffer) -> Array:
        """New elements of these slices. Raises PayloadError."""
        return self.codec.decode(payload, self._run(first, stop))

    def _run(self, first: int, stop: int) -> Array:
        run: Array = self.bounds[first : stop + 1] - self.bounds[first]
        return run
