"""bf16 and fp16: each element rounded to 16 bits, to the nearest, ties to even."""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np

from weft_kernels.kernel import Array
from weft_kvstore.compression.codec import BLOCK_ELEMENTS, Codec, Cut, summed

_MOST: Final = {"bf16": float.fromhex("0x1.fep127"), "fp16": 65504.0}
"""The largest finite numbers."""


class Half(Codec):
    """Element i of a slice is the little-endian 16 bits of its rounded value.

    Without a residual what is too large becomes infinite, as IEEE 754 rounds it. With one it becomes the largest finite
    number, and the rest waits.
    """

    def __init__(self, dtype: np.dtype[Any], name: str) -> None:
        """`name` is bf16 or fp16."""
        super().__init__(dtype)
        self.name = name
        self._brain = name == "bf16"
        self._half = np.dtype(ml_dtypes.bfloat16) if self._brain else np.dtype("<f2")
        self._most = _MOST[name]

    def nbytes(self, counts: Array) -> Array:
        return counts * self._half.itemsize

    def _encode(self, elements: Array, cut: Cut, residual: Array | None, scale: float, out: Array) -> None:
        halves = out.view(self._half)
        space = min(BLOCK_ELEMENTS, elements.size)
        scratch, back = np.empty(space, self.dtype), np.empty(space, self.dtype)
        for low, high, _ in cut.blocks(1, self._half.itemsize):
            kept = None if residual is None else residual[low:high]
            total = summed(elements[low:high], kept, scale, scratch[: high - low])
            self._round(total, halves[low:high])
            if kept is not None:
                self._keep(total, halves[low:high], kept, back[: high - low])

    def _round(self, total: Array, halves: Array) -> None:
        if self._brain and self.dtype.itemsize > 4:
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
        of_wrong = kept[wrong]
        sent[large] = np.copysign(self._most, total[large])
        halves[large] = sent[large].astype(self._half)
        np.subtract(total, sent, out=kept)
        kept[wrong] = of_wrong

    def _decode(self, payload: Array, cut: Cut, out: Array) -> None:
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
