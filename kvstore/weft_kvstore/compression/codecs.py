"""Encodings of slices: half precision, two bits, the largest elements. Pure."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import ml_dtypes
import numpy as np

from weft_kernels.kernel import Array
from weft_kvstore.arrays import Buffer

# --- What all codecs share: a run of slices in, one payload out, and back ---------------------------------------------
# A run's slices lie one behind the other; `bounds` (slices + 1, int64) has where each begins, and where the last one
# ends, in elements from 0. A slice's bytes depend on its own elements alone, and their number on their count alone, so
# no cut into runs or frames changes a byte.


BLOCK_ELEMENTS: Final = 1 << 15
"""Worked on at a time: what goes with 128 KiB of float32 stays in a core's own cache, and calls are few."""


class PayloadError(ValueError):
    """Bytes that no encoder of this codec writes; the text names codec and slice, counted from the run's first, as
    `slice_` does."""

    def __init__(self, text: str, slice_: int = 0) -> None:
        super().__init__(text)
        self.slice_ = slice_


@dataclass(frozen=True, slots=True)
class RunLayout:
    """A run of slices: slice i has elements `elements[i]` to `elements[i + 1]`, and bytes likewise by `nbytes`."""

    elements: Array
    nbytes: Array

    @property
    def counts(self) -> Array:
        """Elements of each slice."""
        return np.diff(self.elements)

    def blocks(self, multiple: int, multiple_bytes: int) -> Iterator[tuple[int, int, int]]:
        """The run in blocks of at most `BLOCK_ELEMENTS`: where the elements begin and end, and where the bytes begin.

        Slices share a block as long as each but the last is a multiple of `multiple` elements, which take
        `multiple_bytes`, so that none has padding."""
        last = len(self.elements) - 1
        groups = [0, *(np.flatnonzero(self.counts[: last - 1] % multiple) + 1).tolist(), last] if last else []
        for first, end in pairwise(groups):
            start, stop, begin = int(self.elements[first]), int(self.elements[end]), int(self.nbytes[first])
            for low in range(start, stop, BLOCK_ELEMENTS):
                yield low, min(low + BLOCK_ELEMENTS, stop), begin + (low - start) // multiple * multiple_bytes


class Codec(ABC):
    """Slices of one dtype to bytes and back; `name` is for errors. Nothing in it changes: any thread may use it.

    `residual`: what is left out is kept, and added to the next gradient.
    """

    name: str
    residual = True

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype

    @abstractmethod
    def nbytes(self, counts: Array) -> Array:
        """The bytes of slices of `counts` elements (int64): a pure function of each."""

    def encode(
        self,
        elements: Array,
        bounds: Array,
        residual: Array | None = None,
        *,
        scale: float = 1.0,
        out: Array | None = None,
    ) -> Array:
        """The slices' bytes, joined (uint8), in `out` (uint8) if it is given.

        What is encoded is elements / scale + residual; `residual` (same shape) becomes what was left out. Where that is
        not finite the receiver gets something that is not finite, and the residual stays.
        """
        layout = self._layout(bounds)
        if out is None:
            out = np.empty(int(layout.nbytes[-1]), np.uint8)
        with np.errstate(all="ignore"):  # What is not finite is found by its bits; the rest rounds as it should.
            self._encode(elements, layout, residual, scale, out)
        return out

    def decode(self, payload: Buffer | Array, bounds: Array) -> Array:
        """The slices' elements. Raises PayloadError for bytes that no encoder writes."""
        layout = self._layout(bounds)
        found = np.frombuffer(payload, np.uint8)
        if found.size != layout.nbytes[-1]:
            raise PayloadError(f"{self.name}: {found.size} bytes for {len(bounds) - 1} slices, not {layout.nbytes[-1]}")
        out = np.empty(int(bounds[-1]), self.dtype)
        with np.errstate(all="ignore"):
            self._decode(found, layout, out)
        return out

    @abstractmethod
    def _encode(self, elements: Array, layout: RunLayout, residual: Array | None, scale: float, out: Array) -> None: ...

    @abstractmethod
    def _decode(self, payload: Array, layout: RunLayout, out: Array) -> None: ...

    def _layout(self, bounds: Array) -> RunLayout:
        begins = np.zeros(len(bounds), np.int64)
        np.cumsum(self.nbytes(np.diff(bounds)), out=begins[1:])
        return RunLayout(bounds, begins)


def scaled_sum(elements: Array, residual: Array | None, scale: float, out: Array) -> Array:
    """elements / scale + residual, in `out` where anything is to be computed. `scale` is a power of two."""
    if scale != 1.0:
        elements = np.multiply(elements, elements.dtype.type(1.0 / scale), out=out)
    return elements if residual is None else np.add(elements, residual, out=out)


# --- bf16 and fp16: each element rounded to 16 bits, to the nearest, ties to even -------------------------------------


_LARGEST_FINITE: Final = {"bf16": float.fromhex("0x1.fep127"), "fp16": 65504.0}
"""The largest finite numbers."""


class Half(Codec):
    """Element i of a slice is the little-endian 16 bits of its rounded value.

    Without a residual what is too large becomes infinite, as IEEE 754 rounds it. With one it becomes the largest finite
    number, and the rest waits.
    """

    def __init__(self, dtype: np.dtype[Any], name: str, *, residual: bool = True) -> None:
        """`name` is bf16 or fp16."""
        super().__init__(dtype)
        self.name = name
        self.residual = residual
        self._is_bfloat16 = name == "bf16"
        self._half = np.dtype(ml_dtypes.bfloat16) if self._is_bfloat16 else np.dtype("<f2")
        self._largest_finite = _LARGEST_FINITE[name]

    def nbytes(self, counts: Array) -> Array:
        return counts * self._half.itemsize

    def _encode(self, elements: Array, layout: RunLayout, residual: Array | None, scale: float, out: Array) -> None:
        halves = out.view(self._half)
        space = min(BLOCK_ELEMENTS, elements.size)
        scratch, back = np.empty(space, self.dtype), np.empty(space, self.dtype)
        for low, high, _ in layout.blocks(1, self._half.itemsize):
            kept = None if residual is None else residual[low:high]
            total = scaled_sum(elements[low:high], kept, scale, scratch[: high - low])
            self._round(total, halves[low:high])
            if kept is not None:
                self._keep(total, halves[low:high], kept, back[: high - low])

    def _round(self, total: Array, halves: Array) -> None:
        if self._is_bfloat16 and self.dtype.itemsize > 4:
            total = _to_odd(total)
        np.copyto(halves, total, casting="unsafe")

    def _keep(self, total: Array, halves: Array, kept: Array, sent: Array) -> None:
        """What rounding left out goes to `kept`."""
        np.copyto(sent, halves, casting="unsafe")
        finite = np.isfinite(sent)
        if finite.all():
            np.subtract(total, sent, out=kept)
            return
        wrong = ~np.isfinite(total)
        large = np.flatnonzero(~finite & ~wrong)
        residual_there = kept[wrong]
        sent[large] = np.copysign(self._largest_finite, total[large])
        halves[large] = sent[large].astype(self._half)
        np.subtract(total, sent, out=kept)
        kept[wrong] = residual_there

    def _decode(self, payload: Array, layout: RunLayout, out: Array) -> None:
        np.copyto(out, payload.view(self._half), casting="unsafe")


def _to_odd(values: Array) -> Array:
    """float64 as float32, rounded towards zero, the last bit set where that lost something: rounded to fewer bits by
    two or more it gives what the float64 number gives at once (Boldo and Melquiond, 2008)."""
    near = values.astype(np.float32)
    bits = near.view(np.uint32)
    bits -= np.abs(near) > np.abs(values)
    lost = np.isfinite(values) & (near != values)
    bits |= lost
    return near


# --- 2-bit: each element becomes -threshold, 0 or threshold, and what that leaves out is kept -------------------------
# sum = gradient + residual; threshold is sent where sum >= threshold, -threshold where sum <= -threshold, else 0; the
# new residual is sum - sent. So MXNet documents its "2bit" compression (docs/faq/gradient_compression.md, 1.9).


WORD_ELEMENTS: Final = 16
NOT_FINITE: Final = 3

_WORD: Final = np.dtype("<u4")
_PACK: Final = np.uint32(1 << 24 | 1 << 18 | 1 << 12 | 1 << 6)
"""Times four codes, a byte each, has them side by side in the top byte: code i moves to bits 24 + 2i."""


class TwoBit(Codec):
    """Element i of a slice is bits 2 (i mod 16) and up of little-endian word i // 16: 0 for 0, 1 for threshold, 2 for
    -threshold, 3 for what is not finite, read as NaN. What is left of the last word is 0."""

    name = "2bit"

    def __init__(self, dtype: np.dtype[Any], threshold: float) -> None:
        """`threshold` in the dtype must be above 0 and finite."""
        super().__init__(dtype)
        self._threshold = dtype.type(threshold)
        of_code = np.array([0, threshold, -threshold, np.nan]).astype(dtype)
        codes = np.arange(256)[:, None] >> np.arange(0, 8, 2) & 3
        self._four = np.dtype((np.void, 4 * dtype.itemsize))
        self._of_byte = np.ascontiguousarray(of_code[codes]).view(self._four).reshape(-1)

    def nbytes(self, counts: Array) -> Array:
        return -(-counts // WORD_ELEMENTS) * _WORD.itemsize

    def _encode(self, elements: Array, layout: RunLayout, residual: Array | None, scale: float, out: Array) -> None:
        space = min(BLOCK_ELEMENTS, _padded(elements.size))
        scratch, sent = np.empty(space, self.dtype), np.empty(space, self.dtype)
        above, below = np.empty(space, np.uint8), np.empty(space, np.uint8)
        for low, high, begin in layout.blocks(WORD_ELEMENTS, _WORD.itemsize):
            count, padded = high - low, _padded(high - low)
            packed = out[begin : begin + padded // 4]
            kept = None if residual is None else residual[low:high]
            total = scaled_sum(elements[low:high], kept, scale, scratch[:count])
            wrong = self._codes(total, above[:padded], below[:padded])
            self._pack(above[:padded], packed)
            if kept is None:
                continue
            residual_there = None if wrong is None else kept[wrong]
            np.take(self._of_byte, packed, out=sent[:padded].view(self._four), mode="clip")
            np.subtract(total, sent[:count], out=kept)
            if wrong is not None:
                kept[wrong] = residual_there

    def _codes(self, total: Array, codes: Array, below: Array) -> Array | None:
        """Writes a code for each element, 0 behind the last; says which are not finite, None where all are."""
        count = total.size
        finite = np.isfinite(total, out=below[:count].view(np.bool_))
        wrong = None if finite.all() else ~finite
        np.greater_equal(total, self._threshold, out=codes[:count].view(np.bool_))
        np.less_equal(total, -self._threshold, out=below[:count].view(np.bool_))
        codes[count:] = 0
        below[count:] = 0
        doubled = below.view(np.uint64)  # Eight codes at a time: none is above 1, so none runs into the next.
        np.left_shift(doubled, np.uint64(1), out=doubled)
        np.bitwise_or(codes.view(np.uint64), doubled, out=codes.view(np.uint64))
        if wrong is not None:
            codes[:count][wrong] = NOT_FINITE
        return wrong

    @staticmethod
    def _pack(codes: Array, packed: Array) -> None:
        words = codes.view(_WORD)
        np.multiply(words, _PACK, out=words)
        np.copyto(packed, codes[3::4])

    def _decode(self, payload: Array, layout: RunLayout, out: Array) -> None:
        self._check_rest(payload, layout)
        for low, high, begin in layout.blocks(WORD_ELEMENTS, _WORD.itemsize):
            whole = (high - low) // 4
            middle = low + 4 * whole
            some = payload[begin : begin + whole]
            np.take(self._of_byte, some, out=out[low:middle].view(self._four), mode="clip")
            if middle < high:
                last = self._of_byte[payload[begin + whole : begin + whole + 1]]
                out[middle:high] = last.view(self.dtype)[: high - middle]

    def _check_rest(self, payload: Array, layout: RunLayout) -> None:
        used = layout.counts % WORD_ELEMENTS
        partial = np.flatnonzero(used)
        last = payload.view(_WORD)[layout.nbytes[partial + 1] // _WORD.itemsize - 1]
        wrong = np.flatnonzero(last >> (2 * used[partial]).astype(np.uint32))
        if wrong.size:
            index = int(partial[wrong[0]])
            detail = f"2bit: slice {index} of {layout.counts[index]} elements has codes behind its last one"
            raise PayloadError(detail, index)


def _padded(count: int) -> int:
    """Elements that the words of `count` elements have space for."""
    return -(-count // WORD_ELEMENTS) * WORD_ELEMENTS


# --- Top-k: of each slice the elements of largest magnitude, with their indices; all others wait ----------------------


SHORT_INDICES: Final = 1 << 16
"""Slices of up to so many elements have indices of 2 bytes, larger ones of 4."""

_SAMPLE_STEP: Final = 16
_LEAST_SAMPLED: Final = 4096


class TopK(Codec):
    """A slice of n elements has k = min(count, n), or ceil(ratio n): k indices, ascending, of 2 bytes each, 4 where n
    is above 65,536; then their k values; all little-endian. Of equal magnitudes those of lower indices are sent.

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
        index_bytes: Array = np.where(counts > SHORT_INDICES, 4, 2)
        sizes: Array = self.kept(counts) * (index_bytes + self.dtype.itemsize)
        return sizes

    def _encode(self, elements: Array, layout: RunLayout, residual: Array | None, scale: float, out: Array) -> None:
        longest = int(layout.counts.max(initial=0))
        scratch, space = np.empty(longest, self.dtype), np.empty(longest, self._bits)
        for low, high, k, payload in self._slices(out, layout):
            old = None if residual is None else residual[low:high]
            total = scaled_sum(elements[low:high], old, scale, scratch[: high - low])
            magnitudes = np.bitwise_and(total.view(self._bits), self._unsigned, out=space[: high - low])
            indices = _largest(magnitudes, k)
            sent_indices, values = self._parts(payload, high - low, k)
            sent_indices[:] = indices
            values[:] = total[indices]
            if old is not None:
                self._keep(total, magnitudes, indices, old)

    def _keep(self, total: Array, magnitudes: Array, indices: Array, residual: Array) -> None:
        """What is not sent goes to the residual, unless it is not finite: then some of that is among what is sent."""
        wrong = None
        if indices.size and magnitudes[indices].max() >= self._infinity:
            wrong = np.flatnonzero(magnitudes >= self._infinity)
            residual_there = residual[wrong]
        np.copyto(residual, total)
        residual[indices] = 0
        if wrong is not None:
            residual[wrong] = residual_there

    def _decode(self, payload: Array, layout: RunLayout, out: Array) -> None:
        out.fill(0)
        for index, (low, high, k, part) in enumerate(self._slices(payload, layout)):
            sent_indices, values = self._parts(part, high - low, k)
            indices = sent_indices.astype(np.int64)
            if k and (indices[-1] >= high - low or (np.diff(indices) <= 0).any()):
                detail = f"topk: slice {index}: indices do not ascend within {high - low} elements"
                raise PayloadError(detail, index)
            out[low:high][indices] = values

    def _slices(self, payload: Array, layout: RunLayout) -> list[tuple[int, int, int, Array]]:
        """Of each slice: where its elements begin and end, how many travel, its bytes."""
        ends, kept = pairwise(layout.elements.tolist()), self.kept(layout.counts).tolist()
        parts = (payload[begin:end] for begin, end in pairwise(layout.nbytes.tolist()))
        return [(low, high, k, part) for (low, high), k, part in zip(ends, kept, parts, strict=True)]

    def _parts(self, payload: Array, count: int, k: int) -> tuple[Array, Array]:
        """A slice's indices and values, as views of its bytes."""
        short = np.dtype("<u2" if count <= SHORT_INDICES else "<u4")
        middle = k * short.itemsize
        return payload[:middle].view(short), payload[middle:].view(self.dtype)


def _largest(magnitudes: Array, k: int) -> Array:
    """The indices of the `k` largest, ascending; of equals the lower ones."""
    if k >= magnitudes.size:
        return np.arange(magnitudes.size)
    indices = _candidates(magnitudes, k)
    some = magnitudes if indices is None else magnitudes[indices]
    least = np.partition(some, some.size - k)[some.size - k]
    chosen = some > least
    lacking = k - int(np.count_nonzero(chosen))
    chosen[np.flatnonzero(some == least)[:lacking]] = True
    found = np.flatnonzero(chosen)
    return found if indices is None else indices[found]


def _candidates(magnitudes: Array, k: int) -> Array | None:
    """The indices of all that reach a bound which a sample says some more than `k` reach. None where they are not at
    least `k`, or few are spared: the bound saves time and decides nothing."""
    if magnitudes.size < _LEAST_SAMPLED:
        return None
    sample = magnitudes[::_SAMPLE_STEP]
    expected = k / _SAMPLE_STEP
    rank = math.ceil(expected + 4 * math.sqrt(expected)) + 4
    if rank > sample.size // 2:
        return None
    indices = np.flatnonzero(magnitudes >= np.partition(sample, sample.size - rank)[sample.size - rank])
    return indices if indices.size >= k else None
