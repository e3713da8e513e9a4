"""What all codecs share: a run of slices in, one payload out, and back. Pure.

A run's slices lie one behind the other; `bounds` (slices + 1, int64) has where each begins, and where the last one
ends, in elements from 0. A slice's bytes depend on its own elements alone, and their number on their count
alone, so no cut into runs or frames changes a byte.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from weft_kernels.kernel import Array
from weft_kvstore.arrays.buffers import Buffer

BLOCK_ELEMENTS: Final = 1 << 15
"""Worked on at a time: what goes with 128 KiB of float32 stays in a core's own cache, and calls are few."""


class PayloadError(ValueError):
    """Bytes that no encoder of this codec writes; the text names codec and slice, counted from the run's first, as
    `slice_` does."""

    def __init__(self, told: str, slice_: int = 0) -> None:
        super().__init__(told)
        self.slice_ = slice_


@dataclass(frozen=True, slots=True)
class Cut:
    """A run of slices: `elements` and `nbytes` (each slices + 1) have where its elements and its bytes begin."""

    elements: Array
    nbytes: Array

    @property
    def counts(self) -> Array:
        """Elements of each slice."""
        return np.diff(self.elements)

    def blocks(self, unit: int, unit_bytes: int) -> Iterator[tuple[int, int, int]]:
        """The run in pieces of at most `BLOCK_ELEMENTS`: where the elements begin and end, and where the bytes begin.

        Slices share a piece as long as each but the last is a multiple of `unit` elements, which take `unit_bytes`, so
        that none has padding.
        """
        last = len(self.elements) - 1
        cuts = [0, *(np.flatnonzero(self.counts[: last - 1] % unit) + 1).tolist(), last] if last else []
        for first, end in pairwise(cuts):
            start, stop, begin = int(self.elements[first]), int(self.elements[end]), int(self.nbytes[first])
            for low in range(start, stop, BLOCK_ELEMENTS):
                yield low, min(low + BLOCK_ELEMENTS, stop), begin + (low - start) // unit * unit_bytes


class Codec(ABC):
    """Slices of one dtype to bytes and back; `name` is for errors. Nothing in it changes: any thread may use it."""

    name: str

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
        """The slices' bytes, joined (uint8), in `out` where that is given.

        What is encoded is elements / scale + residual; `residual` (same shape) becomes what was left out. Where that is
        not finite the receiver sees so, and the residual stays. Raises ValueError for arrays that do not fit.
        """
        cut = self._cut(bounds)
        self._check_elements("elements", elements, cut)
        if residual is not None:
            self._check_elements("residual", residual, cut)
        told = int(cut.nbytes[-1])
        if out is None:
            out = np.empty(told, np.uint8)
        elif out.dtype != np.uint8 or out.shape != (told,) or not out.flags.c_contiguous:
            raise ValueError(f"out: {out.dtype} of shape {out.shape}, not {told} of uint8 in a row")
        with np.errstate(all="ignore"):  # What is not finite is told apart by its bits; the rest rounds as it should.
            self._encode(elements, cut, residual, scale, out)
        return out

    def decode(self, payload: Buffer | Array, bounds: Array, *, out: Array | None = None) -> Array:
        """The slices' elements, in `out` where that is given. Raises PayloadError for bytes that are none of theirs."""
        cut = self._cut(bounds)
        found = np.frombuffer(payload, np.uint8)
        if found.size != cut.nbytes[-1]:
            raise PayloadError(f"{self.name}: {found.size} bytes for {len(bounds) - 1} slices, not {cut.nbytes[-1]}")
        if out is None:
            out = np.empty(int(bounds[-1]), self.dtype)
        else:
            self._check_elements("out", out, cut)
        with np.errstate(all="ignore"):
            self._decode(found, cut, out)
        return out

    @abstractmethod
    def _encode(self, elements: Array, cut: Cut, residual: Array | None, scale: float, out: Array) -> None: ...

    @abstractmethod
    def _decode(self, payload: Array, cut: Cut, out: Array) -> None: ...

    def _cut(self, bounds: Array) -> Cut:
        begins = np.zeros(len(bounds), np.int64)
        np.cumsum(self.nbytes(np.diff(bounds)), out=begins[1:])
        return Cut(bounds, begins)

    def _check_elements(self, name: str, array: Array, cut: Cut) -> None:
        count = int(cut.elements[-1])
        if array.dtype != self.dtype or array.shape != (count,) or not array.flags.c_contiguous:
            raise ValueError(f"{name}: {array.dtype} of shape {array.shape}, not {count} of {self.dtype} in a row")


def summed(elements: Array, residual: Array | None, scale: float, out: Array) -> Array:
    """elements / scale + residual, in `out` where anything is to be computed. `scale` is a power of two."""
    if scale != 1.0:
        elements = np.multiply(elements, elements.dtype.type(1.0 / scale), out=out)
    return elements if residual is None else np.add(elements, residual, out=out)
