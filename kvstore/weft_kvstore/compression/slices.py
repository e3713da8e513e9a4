"""Encodings of runs of slices, and the residual of what they leave out. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

from weft_kernels.kernel import Array
from weft_kvstore.arrays import Buffer
from weft_kvstore.compression.codecs import Codec

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


# --- A codec over the slices of a bucket, a run or a key --------------------------------------------------------------


class SliceCodec:
    """`bounds` (slices + 1, int64): where slices begin, elements from 0; `begins` (slices + 1, int64): where their
    bytes do. Nothing in it changes."""

    __slots__ = ("begins", "bounds", "codec")

    def __init__(self, codec: Codec, bounds: Array) -> None:
        self.codec = codec
        self.bounds = bounds
        self.begins = codec.begins(bounds)

    def __len__(self) -> int:
        """How many slices."""
        return len(self.bounds) - 1

    def nbytes(self, first: int, stop: int) -> int:
        """The bytes of slices `first` to before `stop`."""
        return int(self.begins[stop] - self.begins[first])

    def encode(self, first: int, stop: int, elements: Array, out: Array) -> None:
        """Writes the bytes of these slices, which keep no residual, to `out` (uint8)."""
        self.codec.encode(elements, self._run(first, stop), out=out)

    def decode(self, first: int, stop: int, payload: Buffer) -> Array:
        """New elements of these slices. Raises PayloadError."""
        return self.codec.decode(payload, self._run(first, stop))

    def _run(self, first: int, stop: int) -> Array:
        run: Array = self.bounds[first : stop + 1] - self.bounds[first]
        return run


class SliceEncoder(SliceCodec):
    """The slices of what one sender sends, each encoded once for each step, in any order; writes the residual. One
    thread at a time.

    A slice is never encoded again for a step for which it was, or an earlier one, since its residual has changed: the
    sender keeps the bytes until they are acknowledged.
    """

    __slots__ = ("_next", "encodes", "residual")

    def __init__(self, codec: Codec, bounds: Array, residual: Array | None, *, begin: int = 0) -> None:
        """`residual` (all elements) is the caller's and is written. `begin` is the first step that there will be."""
        super().__init__(codec, bounds)
        self.residual = residual
        self.encodes: Callable[[int, int, int], None] | None = None
        """Called with (step, first, stop) before slices are encoded, while residuals are captured."""
        self._next = np.full(len(self), begin, np.int64)

    @property
    def furthest(self) -> int:
        """The step after the last for which any slice was encoded."""
        return int(self._next.max(initial=0))

    def encode_step(
        self,
        step: int,
        first: int,
        stop: int,
        elements: Array | None,
        *,
        scale: float = 1.0,
        out: Array | None = None,
        late: bool = False,
    ) -> Array:
        """The bytes of slices `first` to before `stop` of these elements; as `Codec.encode` does. None, for a step that
        is skipped or has no gradient: the bytes of zeros, and the residual stays.

        Raises ValueError for a slice that was encoded for this step or a later one. `late`: the caller knows that they
        were not encoded for this step, and they may have been for a later one.
        """
        if not late and (encoded := np.flatnonzero(self._next[first:stop] > step)).size:
            index = first + int(encoded[0])
            raise ValueError(f"slice {index}, step {step}: encoded for step {int(self._next[index]) - 1} already")
        if self.encodes is not None:
            self.encodes(step, first, stop)
        run, residual = self._run(first, stop), None
        if elements is None:
            elements = np.zeros(int(run[-1]), self.codec.dtype)
        elif self.residual is not None:
            residual = self.residual[self.bounds[first] : self.bounds[stop]]
        payload = self.codec.encode(elements, run, residual, scale=scale, out=out)
        np.maximum(self._next[first:stop], step + 1, out=self._next[first:stop])
        return payload
