"""The memory that a client shares with the shards of its host, and the arrays in it that a user fills and reads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from weft_kvstore.arrays import Array
from weft_kvstore.description.records import KeyDescription
from weft_kvstore.same_host.layout import NO_PLACE, SharedLayout, SpareSpace
from weft_kvstore.same_host.memory import Arena, ArenaError


class ClientMemory:
    """One arena, made when a shard of this host is found or an array in it is asked for. It takes memory for each
    shard's stage and window when it is first offered, and for an array when that is first asked for. Without a layout,
    there is none, and arrays are the process's own.

    `gradients` and `values`, by key's place, are the arrays in it that were given out. May be used from several
    threads: memory, which takes long, is taken under locks of its own, so whoever asks for it holds up neither the
    thread that has the sockets nor those who ask for what is there.
    """

    def __init__(self, keys: Sequence[KeyDescription], layout: SharedLayout | None) -> None:
        self.stages = [] if layout is None else [SpareSpace(room) for room in layout.stages]
        """Of each shard, for its link alone."""
        self.gradients: dict[int, Array] = {}
        self.values: dict[int, Array] = {}
        self._keys = keys
        self._layout = layout
        self._own_gradients: dict[int, Array] = {}
        self._own_values: dict[int, Array] = {}
        self._arena: Arena | None = None
        self._failed: ArenaError | None = None
        self._spare = False
        self._offering = threading.Lock()
        """Held while memory for stages and windows is taken."""
        self._reserving = threading.Lock()
        """Held while memory for arrays is taken."""
        self._lock = threading.Lock()
        """Taken under either of the others, never before."""

    def gradient(self, place: int) -> Array:
        """Where a user writes a key's gradient: always the same array, zeros at first."""
        return self._array(place, gradient=True)

    def value(self, place: int) -> Array:
        """Where a user reads a key's value: always the same array."""
        return self._array(place, gradient=False)

    @property
    def is_taken(self) -> bool:
        """Whether there is memory for stages and windows: `offered` returns at once."""
        return self._spare

    def take(self, done: Callable[[], None]) -> None:
        """Takes that memory, on a thread of its own, and calls `done` there: 0.3 ms a MiB, and up to 96 MiB for each
        shard, is too long for a thread of sockets. `is_taken` says whether there was any."""

        def take() -> None:
            try:
                with contextlib.suppress(ArenaError):
                    self.offered()
            finally:
                done()

        try:
            threading.Thread(target=take, name="weft-arena", daemon=True).start()
        except RuntimeError:  # No thread can be had.
            take()

    def offered(self) -> Arena:
        """The arena, to be given to a shard; its memory is taken where it was not. Raises ArenaError where there can be
        none."""
        with self._offering:
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
        """Gives nothing out any more; its arrays stay good. Waits for memory that is being taken. Idempotent."""
        with self._offering, self._reserving, self._lock:
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
                self._arena = Arena(self._layout)
            except ArenaError as error:
                self._failed = error
                raise
        return self._arena

    def _array(self, place: int, *, gradient: bool) -> Array:
        with self._lock:
            found = self._found(place, gradient=gradient)
        if found is not None:
            return found
        with self._reserving:
            with self._lock:
                found = self._found(place, gradient=gradient)  # Another thread may have asked for it meanwhile.
                offset = self._offset(place, gradient=gradient)
                arena = self._made_or_none() if found is None and offset is not None else None
            if found is not None:
                return found
            key = self._keys[place]
            placed = None if arena is None or offset is None else _placed(arena, offset, key)
            made = _own(key) if placed is None else placed
            given = self.gradients if gradient else self.values
            own = self._own_gradients if gradient else self._own_values
            with self._lock:
                (own if placed is None else given)[place] = made
            return made

    def _found(self, place: int, *, gradient: bool) -> Array | None:
        given = self.gradients if gradient else self.values
        return given.get(place, (self._own_gradients if gradient else self._own_values).get(place))

    def _offset(self, place: int, *, gradient: bool) -> int | None:
        """Where its array is in the arena; None where it has to be the process's own."""
        if self._layout is None:
            return None
        offset = int((self._layout.gradients if gradient else self._layout.values)[place])
        return None if offset == NO_PLACE else offset

    def _made_or_none(self) -> Arena | None:
        try:
            return self._made()
        except ArenaError:
            return None


def _own(key: KeyDescription) -> Array:
    """A key's array of the process's own: a view of one that nobody else has. NumPy resizes no view to other bytes, so
    whoever has it cannot take away the memory that the store may be reading or writing."""
    return np.zeros(key.shape, key.dtype)[...]


def _placed(arena: Arena, offset: int, key: KeyDescription) -> Array | None:
    """A key's array in the arena, with memory; None where there is none to be had."""
    nbytes = prod(key.shape) * np.dtype(key.dtype).itemsize
    try:
        arena.reserve(offset, offset + nbytes, populate=False)
        arena.mapping.populate(offset, offset + nbytes)
        return arena.mapping.array(offset, key.shape, key.dtype)
    except ArenaError:
        return None
