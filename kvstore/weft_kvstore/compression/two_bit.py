"""2-bit: each element becomes -threshold, 0 or threshold, and what that leaves out is kept.

sum = gradient + residual; threshold is sent where sum >= threshold, -threshold where sum <= -threshold, else 0; the new
residual is sum - sent. So MXNet documents its "2bit" compression (docs/faq/gradient_compression.md, 1.9).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from weft_kernels.kernel import Array
from weft_kvstore.compression.codec import BLOCK_ELEMENTS, Codec, Cut, PayloadError, summed

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

    def _encode(self, elements: Array, cut: Cut, residual: Array | None, scale: float, out: Array) -> None:
        space = min(BLOCK_ELEMENTS, _padded(elements.size))
        scratch, sent = np.empty(space, self.dtype), np.empty(space, self.dtype)
        above, below = np.empty(space, np.uint8), np.empty(space, np.uint8)
        for low, high, begin in cut.blocks(WORD_ELEMENTS, _WORD.itemsize):
            count, padded = high - low, _padded(high - low)
            packed = out[begin : begin + padded // 4]
            kept = None if residual is None else residual[low:high]
            total = summed(elements[low:high], kept, scale, scratch[:count])
            wrong = self._codes(total, above[:padded], below[:padded])
            self._pack(above[:padded], packed)
            if kept is None:
                continue
            of_wrong = None if wrong is None else kept[wrong]
            np.take(self._of_byte, packed, out=sent[:padded].view(self._four), mode="clip")
            np.subtract(total, sent[:count], out=kept)
            if wrong is not None:
                kept[wrong] = of_wrong

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

    def _decode(self, payload: Array, cut: Cut, out: Array) -> None:
        self._check_rest(payload, cut)
        for low, high, begin in cut.blocks(WORD_ELEMENTS, _WORD.itemsize):
            whole = (high - low) // 4
            middle = low + 4 * whole
            some = payload[begin : begin + whole]
            np.take(self._of_byte, some, out=out[low:middle].view(self._four), mode="clip")
            if middle < high:
                last = self._of_byte[payload[begin + whole : begin + whole + 1]]
                out[middle:high] = last.view(self.dtype)[: high - middle]

    def _check_rest(self, payload: Array, cut: Cut) -> None:
        used = cut.counts % WORD_ELEMENTS
        partial = np.flatnonzero(used)
        last = payload.view(_WORD)[cut.nbytes[partial + 1] // _WORD.itemsize - 1]
        wrong = np.flatnonzero(last >> (2 * used[partial]).astype(np.uint32))
        if wrong.size:
            index = int(partial[wrong[0]])
            told = f"2bit: slice {index} of {cut.counts[index]} elements has codes behind its last one"
            raise PayloadError(told, index)


def _padded(count: int) -> int:
    """Elements that the words of `count` elements have space for."""
    return -(-count // WORD_ELEMENTS) * WORD_ELEMENTS
