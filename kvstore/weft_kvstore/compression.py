"""Gradients and values in fewer bytes: half precision, two bits, the largest elements of a slice.

A sender keeps what an encoding leaves out, the residual, and adds it to the next gradient. Both sides agree on codecs,
lengths and bytes by the description: `description.records` has what a user may ask for. Pure.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, Literal

import ml_dtypes
import numpy as np

from weft_kernels.kernel import Array
from weft_kvstore.arrays import Buffer

# --- What all codecs share: adjacent slices in, one payload out, and back; and the residual ---------------------------
# `bounds` (slices + 1, int64) has where each slice begins, and where the last one ends, in elements from 0. A slice's
# bytes depend on its own elements alone, and their number on their count alone, so it changes no byte which slices are
# encoded together.


BLOCK_ELEMENTS: Final = 1 << 15
"""So many elements are encoded at a time: 128 KiB of float32, with what else is needed, stay in a core's own cache."""


class PayloadError(ValueError):
    """Bytes that no encoder of this codec writes; the text names codec and slice, counted from the first, as `slice_`
    does."""

    def __init__(self, text: str, slice_: int = 0) -> None:
        super().__init__(text)
        self.slice_ = slice_


class Codec(ABC):
    """Slices of one dtype to bytes and back; `name` is for errors. Nothing in it changes: any thread may use it.

    `residual`: what is left out is kept, and added to the next gradient. `multiple`: so many elements take whole bytes.
    """

    name: str
    residual = True
    multiple = 1

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype

    @abstractmethod
    def nbytes(self, counts: Any) -> Any:
        """The bytes of a slice of so many elements, an integer or an array of them."""

    @abstractmethod
    def _encode(self, total: Array, payload: Array, *, keeps: bool) -> bool:
        """Writes the bytes of a block. Returns whether all of it is finite. `keeps`: what the bytes leave out goes to a
        residual."""

    @abstractmethod
    def _decode(self, payload: Array, out: Array) -> None:
        """Writes the elements of a block."""

    def _wrong(self, payload: Array, count: int) -> str | None:
        """What is wrong with the bytes of a block of so many elements, if anything."""
        return None

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
        not finite the receiver gets something that is not finite, and the residual stays. `scale` is a power of two.
        """
        begins = self.begins(bounds)
        if out is None:
            out = np.empty(int(begins[-1]), np.uint8)
        blocks = list(self._blocks(bounds, begins, BLOCK_ELEMENTS))
        longest = max([high - low for low, high, *_ in blocks], default=0)
        scratch, received = np.empty(longest, self.dtype), np.empty(longest, self.dtype)
        with np.errstate(all="ignore"):  # What is not finite is found by its bits; the rest rounds as it should.
            for low, high, begin, end, _ in blocks:
                total, payload = elements[low:high], out[begin:end]
                if scale != 1.0:
                    total = np.multiply(total, self.dtype.type(1.0 / scale), out=scratch[: high - low])
                if residual is None:
                    self._encode(total, payload, keeps=False)
                    continue
                kept, sent = residual[low:high], received[: high - low]
                total = np.add(total, kept, out=scratch[: high - low])
                is_finite = self._encode(total, payload, keeps=True)
                self._keep(total, payload, kept, sent, True if is_finite else np.isfinite(total))
        return out

    def _keep(self, total: Array, payload: Array, kept: Array, sent: Array, where: Array | Literal[True]) -> None:
        """Writes to `kept` what the bytes of a block leave out of `total`, where that is finite. `sent` is written too:
        what they have."""
        self._decode(payload, sent)
        np.subtract(total, sent, out=kept, where=where)

    def check(self, payload: Buffer | Array, bounds: Array) -> None:
        """Raises PayloadError for bytes that no encoder writes."""
        begins, found = self.begins(bounds), np.frombuffer(payload, np.uint8)
        if found.size != begins[-1]:
            raise PayloadError(f"{self.name}: {found.size} bytes for {len(bounds) - 1} slices, not {begins[-1]}")
        for low, high, begin, end, index in self._blocks(bounds, begins, max(int(bounds[-1]), 1)):
            if wrong := self._wrong(found[begin:end], high - low):
                count = bounds[index + 1] - bounds[index]
                raise PayloadError(f"{self.name}: slice {index} of {count} elements {wrong}", index)

    def decode(self, payload: Buffer | Array, bounds: Array) -> Array:
        """The slices' elements, of bytes that are checked."""
        found, out = np.frombuffer(payload, np.uint8), np.empty(int(bounds[-1]), self.dtype)
        with np.errstate(all="ignore"):
            for low, high, begin, end, _ in self._blocks(bounds, self.begins(bounds), max(out.size, 1)):
                self._decode(found[begin:end], out[low:high])
        return out

    def begins(self, bounds: Array) -> Array:
        """Where the bytes of each slice begin, and where the last one's end (slices + 1, int64)."""
        begins = np.zeros(len(bounds), np.int64)
        np.cumsum(self.nbytes(np.diff(bounds)), out=begins[1:])
        return begins

    def _blocks(self, bounds: Array, begins: Array, most: int) -> Iterator[tuple[int, int, int, int, int]]:
        """Blocks of at most `most` elements: the bounds of elements and bytes, and the last slice that may be in it.

        Slices share a block as long as each but the last has a multiple of `multiple` elements, so none has padding."""
        ends = np.flatnonzero(np.diff(bounds)[:-1] % self.multiple) + 1
        for first, stop in pairwise([0, *ends.tolist(), len(bounds) - 1]):
            start, end, begin = int(bounds[first]), int(bounds[stop]), int(begins[first])
            for low in range(start, end, most):
                high = min(low + most, end)
                yield low, high, begin + self.nbytes(low - start), begin + self.nbytes(high - start), stop - 1


# --- bf16 and fp16: each element rounded to 16 bits, to the nearest, ties to even -------------------------------------


_LARGEST: Final = {"bf16": (float.fromhex("0x1.fep127"), 0x7F80), "fp16": (65504.0, 0x7C00)}
"""The largest finite number, and the bits that are all set only in what is not finite."""


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
        self._half = np.dtype(ml_dtypes.bfloat16) if name == "bf16" else np.dtype("<f2")
        self._largest, self._exponent = _LARGEST[name]

    def nbytes(self, counts: Any) -> Any:
        return counts * self._half.itemsize

    def _encode(self, total: Array, payload: Array, *, keeps: bool) -> bool:
        halves = payload.view(self._half)
        self._round(total, halves)
        if not keeps or (payload.view("<u2") & self._exponent).max() < self._exponent:
            return True
        finite = np.isfinite(total)
        self._round(np.where(finite, np.clip(total, -self._largest, self._largest), total), halves)
        return bool(finite.all())

    def _round(self, total: Array, halves: Array) -> None:
        if self.name == "bf16" and self.dtype.itemsize > 4:
            total = _to_odd(total)
        np.copyto(halves, total, casting="unsafe")

    def _decode(self, payload: Array, out: Array) -> None:
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


NOT_FINITE: Final = 3

_WORD: Final = np.dtype("<u4")
_PACK: Final = np.uint32(1 << 24 | 1 << 18 | 1 << 12 | 1 << 6)
"""Times four codes, a byte each, has them side by side in the top byte: code i moves to bits 24 + 2i."""


class TwoBit(Codec):
    """Element i of a slice is bits 2 (i mod 16) and up of little-endian word i // 16: 0 for 0, 1 for threshold, 2 for
    -threshold, 3 for what is not finite, read as NaN. What is left of the last word is 0."""

    name = "2bit"
    multiple = 16

    def __init__(self, dtype: np.dtype[Any], threshold: float) -> None:
        """`threshold` in the dtype must be above 0 and finite."""
        super().__init__(dtype)
        self._threshold = dtype.type(threshold)
        of_code = np.array([0, threshold, -threshold, np.nan]).astype(dtype)
        codes = np.arange(256)[:, None] >> np.arange(0, 8, 2) & 3
        self._four = np.dtype((np.void, 4 * dtype.itemsize))
        self._of_byte = np.ascontiguousarray(of_code[codes]).view(self._four).reshape(-1)

    def nbytes(self, counts: Any) -> Any:
        return -(-counts // self.multiple) * _WORD.itemsize

    def _encode(self, total: Array, payload: Array, *, keeps: bool) -> bool:
        count = total.size
        codes, below = np.zeros((2, 4 * payload.size), np.uint8)
        np.greater_equal(total, self._threshold, out=codes[:count].view(np.bool_))
        np.less_equal(total, -self._threshold, out=below[:count].view(np.bool_))
        doubled = below.view(np.uint64)  # Eight codes at a time: none is above 1, so none runs into the next.
        np.left_shift(doubled, np.uint64(1), out=doubled)
        np.bitwise_or(codes.view(np.uint64), doubled, out=codes.view(np.uint64))
        finite = np.isfinite(total)
        is_finite = bool(finite.all())
        if not is_finite:
            codes[:count][~finite] = NOT_FINITE
        words = codes.view(_WORD)
        np.multiply(words, _PACK, out=words)
        np.copyto(payload, codes[3::4])
        return is_finite

    def _decode(self, payload: Array, out: Array) -> None:
        whole = out.size // 4
        np.take(self._of_byte, payload[:whole], out=out[: 4 * whole].view(self._four), mode="clip")
        if out.size % 4:
            out[4 * whole :] = self._of_byte[payload[whole : whole + 1]].view(self.dtype)[: out.size % 4]

    def _wrong(self, payload: Array, count: int) -> str | None:
        used = count % self.multiple
        return "has codes behind its last one" if used and payload[-4:].view(_WORD)[0] >> 2 * used else None


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
        self._bits = np.dtype(f"u{dtype.itemsize}")
        self._unsigned = self._bits.type(np.iinfo(self._bits).max >> 1)

    def nbytes(self, counts: Any) -> Any:
        most = np.int64(self._count or 0) if self._ratio is None else np.ceil(counts * self._ratio).astype(np.int64)
        return np.minimum(most, counts) * (np.where(counts > SHORT_INDICES, 4, 2) + self.dtype.itemsize)

    def _blocks(self, bounds: Array, begins: Array, most: int) -> Iterator[tuple[int, int, int, int, int]]:
        elements, nbytes = pairwise(bounds.tolist()), pairwise(begins.tolist())
        for index, ((low, high), (begin, end)) in enumerate(zip(elements, nbytes, strict=True)):
            if high > low:
                yield low, high, begin, end, index

    def _encode(self, total: Array, payload: Array, *, keeps: bool) -> bool:
        indices, values = self._fields(payload, total.size)
        indices[:] = largest = _largest(total.view(self._bits) & self._unsigned, indices.size)
        values[:] = total[largest]
        return bool(np.isfinite(values).all())

    def _keep(self, total: Array, payload: Array, kept: Array, sent: Array, where: Array | Literal[True]) -> None:
        if where is not True:
            super()._keep(total, payload, kept, sent, where)
            return
        kept[:] = total
        kept[self._fields(payload, total.size)[0]] = 0  # Few: most of a slice need not be read back.

    def _decode(self, payload: Array, out: Array) -> None:
        indices, values = self._fields(payload, out.size)
        out.fill(0)
        out[indices] = values

    def _wrong(self, payload: Array, count: int) -> str | None:
        indices, _ = self._fields(payload, count)
        ascend = indices[-1] < count and (indices[1:] > indices[:-1]).all()
        return None if ascend else "has indices that do not ascend within it"

    def _fields(self, payload: Array, count: int) -> tuple[Array, Array]:
        """A slice's indices and values, as views of its bytes."""
        index = np.dtype("<u2" if count <= SHORT_INDICES else "<u4")
        middle = payload.size // (index.itemsize + self.dtype.itemsize) * index.itemsize
        return payload[:middle].view(index), payload[middle:].view(self.dtype)


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
    """The indices of all magnitudes from a bound on, which a sample says that some more than `k` reach. None if fewer
    than `k` do, or if this would save little. The bound saves time and decides nothing."""
    if magnitudes.size < _LEAST_SAMPLED:
        return None
    sample = magnitudes[::_SAMPLE_STEP]
    expected = k / _SAMPLE_STEP
    rank = math.ceil(expected + 4 * math.sqrt(expected)) + 4
    if rank > sample.size // 2:
        return None
    indices = np.flatnonzero(magnitudes >= np.partition(sample, sample.size - rank)[sample.size - rank])
    return indices if indices.size >= k else None


# --- A codec over the slices of a bucket, a segment or a key ----------------------------------------------------------


class SliceCodec:
    """`bounds` (slices + 1, int64): where slices begin, elements from 0; `begins` (slices + 1, int64): where their
    bytes do. `residual` (all elements) is the caller's, is written, and is None where nothing is kept: then any thread
    may use it. With a residual a slice must be encoded once for each step, in any order."""

    __slots__ = ("begins", "bounds", "codec", "residual")

    def __init__(self, codec: Codec, bounds: Array, residual: Array | None = None) -> None:
        self.codec = codec
        self.bounds = bounds
        self.begins = codec.begins(bounds)
        self.residual = residual

    def __len__(self) -> int:
        """How many slices."""
        return len(self.bounds) - 1

    def nbytes(self, first: int, stop: int) -> int:
        """The bytes of slices `first` to before `stop`."""
        return int(self.begins[stop] - self.begins[first])

    def encode(
        self, first: int, stop: int, elements: Array | None, *, scale: float = 1.0, out: Array | None = None
    ) -> Array:
        """The bytes of slices `first` to before `stop` of these elements; as `Codec.encode` does. None, for a step that
        is skipped or has no gradient: the bytes of zeros, and the residual stays."""
        bounds, residual = self._bounds_of(first, stop), None
        if elements is None:
            elements = np.zeros(int(bounds[-1]), self.codec.dtype)
        elif self.residual is not None:
            residual = self.residual[self.bounds[first] : self.bounds[stop]]
        return self.codec.encode(elements, bounds, residual, scale=scale, out=out)

    def check(self, first: int, stop: int, payload: Buffer) -> None:
        """Raises PayloadError for bytes of these slices that no encoder writes."""
        self.codec.check(payload, self._bounds_of(first, stop))

    def decode(self, first: int, stop: int, payload: Buffer) -> Array:
        """New elements of these slices, of bytes that are checked."""
        return self.codec.decode(payload, self._bounds_of(first, stop))

    def _bounds_of(self, first: int, stop: int) -> Array:
        bounds: Array = self.bounds[first : stop + 1] - self.bounds[first]
        return bounds


# --- Residuals in a snapshot: what compression has left out so far, by key and sender ---------------------------------


_PREFIX: Final = "residual"
_MERGED: Final = "merged"


def residual_array(slot: int | None) -> str:
    """The name that a key's residual has in a snapshot: of a slot's gradients, or, slot None, of the gradients that
    shards merged."""
    return f"{_PREFIX}/{_MERGED if slot is None else slot}"


def slot_of(array: str) -> int | None:
    """The slot whose residual a key's array is by its name; None where it is no slot's."""
    prefix, _, slot = array.partition("/")
    return int(slot) if prefix == _PREFIX and slot.isascii() and slot.isdigit() else None


def reassigned(former: Iterable[int], slots: Sequence[int]) -> list[tuple[int, int]]:
    """Which slot takes over the residual of each former one: (former, new), in the order in which they are added.

    Merging is a sum, so it does not matter who sends a part, as long as nothing is lost: of n slots slots[i mod n]
    takes over from the i-th former one.
    """
    return [(one, slots[number % len(slots)]) for number, one in enumerate(sorted(former))]
