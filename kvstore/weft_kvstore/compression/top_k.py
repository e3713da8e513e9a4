"""Top-k: of each slice the elements of largest magnitude, with their places; all others wait."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, Final

import numpy as np

from weft_kernels.kernel import Array
from weft_kvstore.compression.codec import Codec, Cut, PayloadError, summed

SHORT_PLACES: Final = 1 << 16
"""Slices of up to so many elements have places of 2 bytes, larger ones of 4."""

_SAMPLE_STEP: Final = 16
_LEAST_SAMPLED: Final = 4096


class TopK(Codec):
    """A slice of n elements has k = min(count, n), or ceil(ratio n): k places, ascending, of 2 bytes each, 4 where n is
    above 65,536; then their k values; all little-endian. Of equal magnitudes the lower places go first.

    Magnitudes are compared as bits without the sign, so NaN is above infinity: a slice that has anything that is not
    finite sends some of it.
    """

    name = "topk"

    def __init__(self, dtype: np.dtype[Any], *, ratio: float | None = None, count: int | None = None) -> None:
        """One of both: `ratio` above 0 and at most 1, or `count` from 1."""
        super().__init__(dtype)
        self._ratio, self._count = ratio, count
        bits = np.dtype(f"u{dtype.itemsize}")
        self._bits = bits
        self._unsigned = bits.type(np.iinfo(bits).max >> 1)
        self._infinity = np.array([np.inf], dtype).view(bits)[0]

    def kept(self, counts: Array) -> Array:
        """How many elements of slices of `counts` elements travel."""
        if self._ratio is None:
            return np.minimum(counts, np.int64(self._count or 1))
        return np.minimum(np.ceil(counts * self._ratio).astype(np.int64), counts)

    def nbytes(self, counts: Array) -> Array:
        of_place: Array = np.where(counts > SHORT_PLACES, 4, 2)
        sizes: Array = self.kept(counts) * (of_place + self.dtype.itemsize)
        return sizes

    def _encode(self, elements: Array, cut: Cut, residual: Array | None, scale: float, out: Array) -> None:
        longest = int(cut.counts.max(initial=0))
        scratch, space = np.empty(longest, self.dtype), np.empty(longest, self._bits)
        for low, high, many, payload in self._slices(out, cut):
            old = None if residual is None else residual[low:high]
            total = summed(elements[low:high], old, scale, scratch[: high - low])
            magnitudes = np.bitwise_and(total.view(self._bits), self._unsigned, out=space[: high - low])
            places = _largest(magnitudes, many)
            where, values = self._parts(payload, high - low, many)
            where[:] = places
            values[:] = total[places]
            if old is not None:
                self._keep(total, magnitudes, places, old)

    def _keep(self, total: Array, magnitudes: Array, places: Array, residual: Array) -> None:
        """What is not sent goes to the residual, unless it is not finite: then some of that is among what is sent."""
        wrong = None
        if places.size and magnitudes[places].max() >= self._infinity:
            wrong = np.flatnonzero(magnitudes >= self._infinity)
            of_wrong = residual[wrong]
        np.copyto(residual, total)
        residual[places] = 0
        if wrong is not None:
            residual[wrong] = of_wrong

    def _decode(self, payload: Array, cut: Cut, out: Array) -> None:
        out.fill(0)
        for index, (low, high, many, part) in enumerate(self._slices(payload, cut)):
            where, values = self._parts(part, high - low, many)
            places = where.astype(np.int64)
            if many and (places[-1] >= high - low or (np.diff(places) <= 0).any()):
                told = f"topk: slice {index}: places are not ascending within {high - low} elements"
                raise PayloadError(told, index)
            out[low:high][places] = values

    def _slices(self, payload: Array, cut: Cut) -> list[tuple[int, int, int, Array]]:
        """Of each slice: where its elements begin and end, how many travel, its bytes."""
        ends, kept = pairwise(cut.elements.tolist()), self.kept(cut.counts).tolist()
        parts = (payload[begin:end] for begin, end in pairwise(cut.nbytes.tolist()))
        return [(low, high, many, part) for (low, high), many, part in zip(ends, kept, parts, strict=True)]

    def _parts(self, payload: Array, count: int, many: int) -> tuple[Array, Array]:
        """A slice's places and values, as views of its bytes."""
        short = np.dtype("<u2" if count <= SHORT_PLACES else "<u4")
        middle = many * short.itemsize
        return payload[:middle].view(short), payload[middle:].view(self.dtype)


def _largest(magnitudes: Array, many: int) -> Array:
    """The places of the `many` largest, ascending; of equals the lower places."""
    if many >= magnitudes.size:
        return np.arange(magnitudes.size)
    places = _candidates(magnitudes, many)
    some = magnitudes if places is None else magnitudes[places]
    least = np.partition(some, some.size - many)[some.size - many]
    chosen = some > least
    lacking = many - int(np.count_nonzero(chosen))
    chosen[np.flatnonzero(some == least)[:lacking]] = True
    found = np.flatnonzero(chosen)
    return found if places is None else places[found]


def _candidates(magnitudes: Array, many: int) -> Array | None:
    """The places of all that reach a bound which a sample says some more than `many` reach. None where they are not at
    least `many`, or few are spared: the bound saves time and decides nothing."""
    if magnitudes.size < _LEAST_SAMPLED:
        return None
    sample = magnitudes[::_SAMPLE_STEP]
    expected = many / _SAMPLE_STEP
    rank = math.ceil(expected + 4 * math.sqrt(expected)) + 4
    if rank > sample.size // 2:
        return None
    places = np.flatnonzero(magnitudes >= np.partition(sample, sample.size - rank)[sample.size - rank])
    return places if places.size >= many else None
