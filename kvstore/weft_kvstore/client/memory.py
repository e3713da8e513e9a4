"""The memory that a client shares with the shards of its host, and the arrays in it that a user fills and reads."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from math import prod

import numpy as np

from weft_kvstore.arrays.array import Array
from weft_kvstore.description.records import KeyDescription
from weft_kvstore.same_host.arena import Arena
from weft_kvstore.same_host.errors import ArenaError
from weft_kvstore.same_host.layout import NO_PLACE
from weft_kvstore.same_host.shared_layout import SharedLayout
from weft_kvstore.same_host.spare_space import SpareSpace


class ClientMemory:
    """One arena, made when a shard of this host is found or an array in it is asked for. It takes memory for each
    shard's stage and window when it is first offered, and for an array when that is first asked for. Without a layout,
    there is none, and arrays are the process's own.

    `gradients` and `values`, by key's place, are the arrays in it that were given out. May be used from several
    threads.
    """

    def __init__(self, keys: Sequence[KeyDescription], layout: SharedLayout | None) -> None:
        self.stages = [] if layout is None else [SpareSpace(room) for room in layout.stages]
        """Of each shard, for its link alone."""
        self.gradients: dict[int, Array] = {}
        self.values: dict[int, Array] = {}
        self._keys = keys
        self._layout = layout
        self._own: tuple[dict[int, Array], dict[int, Array]] = {}, {}
        self._arena: Arena | None = None
        self._failed: ArenaError | None = None
        self._spare = False
        self._lock = threading.Lock()

    def gradient(self, place: int) -> Array:
        """Where a user writes a key's gradient: always the same array, zeros at first."""
        return self._array(self.gradients, self._own[0], place)

    def value(self, place: int) -> Array:
        """Where a user reads a key's value: always the same array."""
        return self._array(self.values, self._own[1], place)

    def offered(self) -> Arena:
        """The arena, to be given to a shard. Raises ArenaError where there can be none."""
        with self._lock:
            arena = self._made()
            if not self._spare:
                spare = arena.layout.spare
                arena.reserve(spare.start, spare.stop)
                self._spare = True
            return arena

    def bytes_at(self, offset: int, nbytes: int) -> Array:
        """Bytes of an arena that was offered. Raises ArenaError for bytes that it has not."""
        if self._arena is None:
            raise ArenaError("no arena was offered")
        return self._arena.mapping.bytes_at(offset, nbytes)

    def close(self) -> None:
        """Gives nothing out any more; its arrays stay good. Idempotent."""
        with self._lock:
            self._layout = None
            self.gradients, self.values = {}, {}
            if self._arena is not None:
                self._arena.close()

    def _made(self) -> Arena:
        if self._failed is not None:
            raise self._failed
        if self._layout is None:
            raise ArenaError("there is no arena")
        if self._arena is None:
            try:
                self._arena = Arena(self._layout.layout)
            except ArenaError as error:
                self._failed = error
                raise
        return self._arena

    def _array(self, given: dict[int, Array], own: dict[int, Array], place: int) -> Array:
        with self._lock:
            found = given.get(place, own.get(place))
            if found is not None:
                return found
            key = self._keys[place]
            placed = self._placed(key, place, gradient=given is self.gradients)
            if placed is not None:
                given[place] = placed
                return placed
            made = own[place] = np.zeros(key.shape, key.dtype)
            return made

    def _placed(self, key: KeyDescription, place: int, *, gradient: bool) -> Array | None:
        """Its array in the arena, with memory; None where it has to be the process's own."""
        if self._layout is None:
            return None
        offsets = self._layout.layout.gradients if gradient else self._layout.layout.values
        offset = int(offsets[0, place])
        if offset == NO_PLACE:
            return None
        nbytes = prod(key.shape) * np.dtype(key.dtype).itemsize
        try:
            arena = self._made()
            arena.reserve(offset, offset + nbytes, populate=False)
            arena.mapping.populate(offset, offset + nbytes)
            return arena.mapping.array(offset, key.shape, key.dtype)
        except ArenaError:
            return None
