"""Values of a bucket on a shard, as they are and as they travel encoded. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np

from weft_kvstore.arrays import Array, Range, bytes_of, ranges_where
from weft_kvstore.compression.description import Choice
from weft_kvstore.compression.slices import SliceCodec, SliceEncoder
from weft_kvstore.wire.out_run import OneBuffer, Pinnable

# --- The values of a bucket on a shard: one flat array, in blocks that are copied where slices are written while lent -
# A block has whole slices of at most `BLOCK_BYTES` together: it fills a frame, and is what a copy costs where a reader
# is slower than the slots.


BLOCK_BYTES: Final = 1 << 23


class BucketValues:
    """Values (elements) whose slice i has elements `bounds[i]` to `bounds[i + 1]`. Where `changed` (slices, bool) is
    there, it is set for slices that are written."""

    __slots__ = ("_block_of", "_blocks", "_edges", "bounds", "changed", "dtype")

    def __init__(self, values: Array, bounds: Array, *, in_one: bool = False) -> None:
        """`in_one`: all of it is one block, for who writes it all at once."""
        self.bounds = bounds
        self.changed: Array | None = None
        self.dtype: np.dtype[Any] = values.dtype
        self._edges = np.array([0, len(bounds) - 1]) if in_one else _edges(bounds * self.dtype.itemsize)
        self._block_of = np.repeat(np.arange(len(self._edges) - 1), np.diff(self._edges))
        source, itemsize = OneBuffer(bytes_of(values)), self.dtype.itemsize
        starts = bounds[self._edges].tolist()
        self._blocks = [
            Pinnable(values[start:stop], source, start * itemsize, parts)
            for (start, stop), parts in zip(pairwise(starts), np.diff(self._edges).tolist(), strict=True)
        ]

    def pieces(self, first: int, stop: int) -> Iterator[tuple[int, int, Pinnable, int, Array]]:
        """Slices by blocks, each with which part of the block the first is, and where slices begin and end in its
        source: (slices + 1) int64 bytes."""
        for number in range(int(self._block_of[first]), int(self._block_of[stop - 1]) + 1):
            edge, end = int(self._edges[number]), int(self._edges[number + 1])
            low, high, held = max(edge, first), min(end, stop), self._blocks[number]
            bounds: Array = (self.bounds[low : high + 1] - self.bounds[edge]) * self.dtype.itemsize + held.start
            yield low, high, held, low - edge, bounds

    def written(self, first: int, stop: int) -> Iterator[tuple[int, int, Array]]:
        """The elements of slices, to be written: by blocks, each with the slices that lie in it."""
        if self.changed is not None:
            self.changed[first:stop] = True
        for number in range(int(self._block_of[first]), int(self._block_of[stop - 1]) + 1):
            edge = int(self._edges[number])
            low, high = max(edge, first), min(int(self._edges[number + 1]), stop)
            held = self._blocks[number]
            if held.is_lent(low - edge, high - edge):
                held = self._blocks[number] = held.copied()
            start = self.bounds[edge]
            yield low, high, held.array[self.bounds[low] - start : self.bounds[high] - start]

    def elements(self, first: int, stop: int) -> Iterator[tuple[int, int, Array]]:
        """The elements of slices, to be read: by blocks, each with the slices that lie in it."""
        for low, high, held, part, _ in self.pieces(first, stop):
            start = self.bounds[low - part]
            yield low, high, held.array[self.bounds[low] - start : self.bounds[high] - start]


def _edges(bounds: Array) -> Array:
    """The slices at which blocks begin, and where the last one ends; `bounds` in bytes."""
    edges, count = [0], len(bounds) - 1
    while edges[-1] < count:
        at = edges[-1]
        fit = int(np.searchsorted(bounds, bounds[at] + BLOCK_BYTES, side="right")) - 1
        edges.append(min(max(fit, at + 1), count))
    return np.array(edges, np.int64)


# --- The values of a bucket, or of a whole key, as they travel encoded to workers: made once for all of them ----------
# What travels     | Is encoded                                                    | With a residual
# -----------------|---------------------------------------------------------------|---------------------
# weights          | when somebody first asks for them after they have changed     | never
# merged gradients | when a step applies, whoever asks; a value that was set never | where the store says


class EncodedValues:
    """`values` are the bytes, lent and copied as values are. `changed` (slices) bool: of which slices they are not
    those of the value; whoever writes the value sets it. `residual` (elements) is what merged gradients owe to all
    workers; None where nothing is kept."""

    __slots__ = ("_codec", "_encoder", "changed", "residual", "values")

    def __init__(self, choice: Choice, bounds: Array, *, merged: bool) -> None:
        """`bounds` (slices + 1, int64): where slices begin, elements. `merged`: the value is a merged gradient."""
        self._codec = SliceCodec(choice.codec, bounds)
        self.values = BucketValues(np.empty(int(self._codec.begins[-1]), np.uint8), self._codec.begins)
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
