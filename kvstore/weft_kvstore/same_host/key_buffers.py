"""Arrays that the store gives: what a user writes and reads there is not copied on its way to a shard of the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from weft_kvstore.same_host.arena import Arena
from weft_kvstore.same_host.layout import NO_PLACE, Offsets
from weft_kvstore.same_host.place_book import PlaceBook
from weft_kvstore.store import Array


@dataclass(frozen=True, slots=True)
class BufferShape:
    """What a key's arrays are like. `dtype` as NumPy names it."""

    shape: tuple[int, ...]
    dtype: str


class KeyBuffers:
    """By key's place: an array for its gradient and one for its value, C-contiguous, always the same ones.

    The first that is asked for takes a place of the key from the book for good. Where no place is free, or there is no
    arena, it is an array of the process's own: it works alike, and its bytes are sent.

    A gradient array may be written when the push of what it holds has ended; a value array holds the version of the
    last pull into it that ended, and nothing certain while one is under way or after one has failed.
    """

    def __init__(
        self, shapes: Sequence[BufferShape], arena: Arena | None, gradients: PlaceBook, values: PlaceBook
    ) -> None:
        self._shapes = shapes
        self._arena = arena
        self._books = {"gradient": gradients, "value": values}
        self._made: dict[tuple[str, int], Array] = {}

    def gradient(self, key: int) -> Array:
        """Where a user writes the key's gradient. Raises IndexError for a key that there is not."""
        return self._array("gradient", key)

    def value(self, key: int) -> Array:
        """Where a user reads the key's value. Raises IndexError for a key that there is not."""
        return self._array("value", key)

    def _array(self, kind: str, key: int) -> Array:
        found = self._made.get((kind, key))
        if found is None:
            shape = self._shapes[key]
            found = self._placed(kind, key, shape)
            if found is None:
                found = np.zeros(shape.shape, shape.dtype)
            self._made[kind, key] = found
        return found

    def _placed(self, kind: str, key: int, shape: BufferShape) -> Array | None:
        if self._arena is None:
            return None
        take: Callable[[Offsets], Offsets] = self._books[kind].take
        offset = int(take(np.array([key], np.int64))[0])
        return None if offset == NO_PLACE else self._arena.mapping.array(offset, shape.shape, shape.dtype)
