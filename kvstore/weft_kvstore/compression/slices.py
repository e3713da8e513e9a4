"""Encodings of runs of slices, and the residual of what they leave out. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from weft_kernels.kernel import Array
from weft_kvstore.arrays import Buffer
from weft_kvstore.compression.codecs import Codec
from weft_kvstore.compression.description import CompressionError

# --- What compression has left out so far and a sender still owes, by key: a part of every snapshot -------------------


_ROOM: Final = "residual"
_MERGED: Final = "merged"


def residual_array(slot: int | None) -> str:
    """The name that a key's array has in a snapshot: of a slot's gradients, or, slot None, of what shards owe to all
    workers."""
    return f"{_ROOM}/{_MERGED if slot is None else slot}"


def residual_name(key: str, slot: int | None) -> str:
    """The same with the key's name."""
    return f"{residual_array(slot)}/{key}"


def slot_of(array: str) -> int | None:
    """Whose residual a key's array is by its name; None where it is no slot's."""
    room, _, slot = array.partition("/")
    return int(slot) if room == _ROOM and slot.isascii() and slot.isdigit() else None


def heirs(former: Iterable[int], slots: Sequence[int]) -> list[tuple[int, int]]:
    """Which slot owes from now on what each former one did: (former, new), in the order in which they are added.

    Merging is a sum, so who owes a part does not matter, as long as nothing is lost: of n slots the i-th former one's
    part goes to slots[i mod n].
    """
    return [(one, slots[place % len(slots)]) for place, one in enumerate(sorted(former))]


class Residuals:
    """One sender's: of a worker its slot's, of a shard (slot None) those of merged gradients. `arrays[key]` (elements)
    are written by encoders; they begin at 0, and their memory is taken as it is written."""

    def __init__(self, slot: int | None, keys: Mapping[str, tuple[int, np.dtype[Any]]]) -> None:
        """`keys`: of each key with a residual how many elements this sender sends, and their dtype."""
        self.slot = slot
        self.arrays: dict[str, Array] = {key: np.zeros(size, dtype) for key, (size, dtype) in keys.items()}

    def export(self) -> dict[str, Array]:
        """Copies, by name: what is owed after the step that was encoded last."""
        return {residual_name(key, self.slot): array.copy() for key, array in self.arrays.items()}

    def restore(self, named: Mapping[str, Array]) -> None:
        """Takes on what `export` gave; keys that are not named begin at 0 again.

        Raises CompressionError, which names the array, for one that is not this sender's or does not fit; then nothing
        has changed.
        """
        mine = {residual_name(key, self.slot): array for key, array in self.arrays.items()}
        for name, array in named.items():
            own = mine.get(name)
            if own is None:
                raise CompressionError(f"{name}: there is no such residual here")
            if array.dtype != own.dtype or array.shape != own.shape:
                detail = f"{array.dtype} of shape {array.shape}"
                raise CompressionError(f"{name}: {detail}, not {own.size} elements of {own.dtype}")
            if not np.isfinite(array).all():
                raise CompressionError(f"{name}: not all of it is finite")
        for name, own in mine.items():
            own[:] = named.get(name, 0)


# --- A codec over the slices of a bucket, a run or a key: where their bytes lie, and back to elements -----------------


class SliceCodec:
    """`bounds` (slices + 1, int64): where slices begin, elements from 0; `begins` (slices + 1, int64): where their
    bytes do. Nothing in it changes."""

    __slots__ = ("begins", "bounds", "codec")

    def __init__(self, codec: Codec, bounds: Array) -> None:
        self.codec = codec
        self.bounds = bounds
        self.begins = np.zeros(len(bounds), np.int64)
        np.cumsum(codec.nbytes(np.diff(bounds)), out=self.begins[1:])

    def __len__(self) -> int:
        """How many slices."""
        return len(self.bounds) - 1

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


class SliceEncoder(SliceCodec):
    """The slices of what one sender sends, each encoded once for each step, in any order; writes the residual. One
    thread at a time.

    A slice that was encoded for a step must never be again for that step or one before, for its residual has moved on:
    whoever sends keeps the bytes until they are acknowledged.
    """

    __slots__ = ("_next", "encodes", "residual")

    def __init__(self, codec: Codec, bounds: Array, residual: Array | None, *, begin: int = 0) -> None:
        """`residual` (all elements) is the caller's and is written. `begin` is the first step that there will be."""
        super().__init__(codec, bounds)
        self.residual = residual
        self.encodes: Callable[[int, int, int], None] | None = None
        """Told (step, first, stop) before slices are encoded, where somebody asks."""
        self._next = np.full(len(self), begin, np.int64)

    @property
    def furthest(self) -> int:
        """A step beyond the last of which any slice was encoded."""
        return int(self._next.max(initial=0))

    def encode_step(
        self, step: int, first: int, stop: int, elements: Array | None, *, scale: float = 1.0, out: Array | None = None
    ) -> Array:
        """The bytes of slices `first` to before `stop`, whose elements these are; as `Codec.encode` does. None: the
        step is skipped, or nobody contributed to it: the bytes of zeros, and what is owed stays owed.

        Raises ValueError where one of them was encoded for this step.
        """
        reached = self._next[first:stop]
        if stop <= first or reached.size != stop - first:
            raise ValueError(f"slices {first} to {stop - 1}: there are {self._next.size}")
        before = np.flatnonzero(reached > step)
        if before.size:
            index = first + int(before[0])
            raise ValueError(f"slice {index}, step {step}: encoded for step {int(self._next[index]) - 1} already")
        if self.encodes is not None:
            self.encodes(step, first, stop)
        run, residual = self._run(first, stop), None
        if elements is None:
            elements = np.zeros(int(run[-1]), self.codec.dtype)
        elif self.residual is not None:
            residual = self.residual[self.bounds[first] : self.bounds[stop]]
        payload = self.codec.encode(elements, run, residual, scale=scale, out=out)
        self._next[first:stop] = step + 1
        return payload
