"""The values of a lot, or of a whole key, as they travel encoded to workers: made once for all of them. Pure.

| What travels     | Is encoded                                                    | With a residual     |
|------------------|---------------------------------------------------------------|---------------------|
| weights          | when somebody first asks for them after they have changed     | never               |
| merged gradients | when a step applies, whoever asks; a value that was set never | where the store says |
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from weft_kvstore.arrays.array import Array
from weft_kvstore.arrays.ranges import Range, ranges_where
from weft_kvstore.compression.choice import Choice
from weft_kvstore.compression.slice_codec import SliceCodec
from weft_kvstore.compression.slice_encoder import SliceEncoder
from weft_kvstore.lot.values import LotValues


class EncodedValues:
    """`values` are the bytes, lent and copied as values are. `changed` (slices) bool: of which slices they are not
    those of the value; whoever writes the value sets it. `residual` (elements) is what merged gradients owe to all
    workers; None where nothing is kept."""

    __slots__ = ("_codec", "_encoder", "changed", "residual", "values")

    def __init__(self, choice: Choice, bounds: Array, *, merged: bool) -> None:
        """`bounds` (slices + 1, int64): where slices begin, elements. `merged`: the value is a merged gradient."""
        self._codec = SliceCodec(choice.codec, bounds)
        self.values = LotValues(np.empty(int(self._codec.begins[-1]), np.uint8), self._codec.begins)
        self.changed: Array = np.ones(len(bounds) - 1, np.bool_)
        self.residual = np.zeros(int(bounds[-1]), choice.codec.dtype) if merged and choice.residual else None
        self._encoder = SliceEncoder(choice.codec, bounds, self.residual) if merged else None

    def merged(self, step: int, first: int, stop: int, total: Array | None) -> None:
        """The merged gradient of a step is these slices' value; None where there is none."""
        encoder, bounds = self._encoder, self._codec.bounds
        assert encoder is not None
        for low, high, out in self.values.written(first, stop):
            if total is None:
                out[:] = encoder.encode_nothing(step, low, high - low)
            else:
                elements = total[bounds[low] - bounds[first] : bounds[high] - bounds[first]]
                encoder.encode(step, low, high - low, elements, out=out)
        self.changed[first:stop] = False

    def missing(self, first: int, stop: int) -> list[Range]:
        """Slices among these whose bytes are to be made."""
        return [] if self._encoder is not None else ranges_where(self.changed[first:stop], first)

    def make(self, parts: Iterable[tuple[int, int, Array]]) -> None:
        """Encodes weights: slices from the first number to before the second, and their elements."""
        bounds = self._codec.bounds
        for first, stop, elements in parts:
            for low, high, out in self.values.written(first, stop):
                some = elements[bounds[low] - bounds[first] : bounds[high] - bounds[first]]
                self._codec.encode(low, high, some, out)
            self.changed[first:stop] = False
