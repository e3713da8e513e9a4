"""How a client's link and a shard use an arena for the frames that pass through it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import Any, Final, Protocol

import numpy as np

from weft_kvstore.arrays import Array, Buffer, Range
from weft_kvstore.errors import StoreError
from weft_kvstore.same_host.layout import BucketPlaces, ShardPlaces, SpareSpace
from weft_kvstore.wire.codec import ProtocolError

# --- Bytes of a client's arena that are read where they lie -----------------------------------------------------------


class Memory(Protocol):
    """An arena as a core sees it."""

    nbytes: int

    def bytes_at(self, offset: int, nbytes: int) -> Array:
        """Bytes of it, to be written. Raises StoreError for bytes that it has not."""


class _Hold:
    """What a view of an arena belongs to. That nobody can read a frame's bytes any more is known by nothing but that
    no array over them is left: sums, pending segments and rules need not count who still has a part."""

    __slots__ = ("__array_interface__", "_bytes", "_let_go")

    def __init__(self, memory: Memory, let_go: Callable[[], None]) -> None:
        self._bytes = memory.bytes_at(0, memory.nbytes)
        self._let_go = let_go
        found = self._bytes.__array_interface__
        self.__array_interface__: dict[str, Any] = {**found, "data": (found["data"][0], True)}

    def __del__(self) -> None:
        self._let_go()


def held(memory: Memory, let_go: Callable[[], None]) -> Array:
    """All of an arena, uint8, read-only. When the last array over any part of it is gone, `let_go` is called, on
    whatever thread that happens."""
    return np.asarray(_Hold(memory, let_go))


# --- The arena of a connection's client, as its shard uses it ---------------------------------------------------------


LEAST_SHARED_BYTES: Final = 16 << 10
"""A shorter payload travels as bytes: that costs no more."""


class Arenas(Protocol):
    """Where clients of this host bring their arenas, as the shard's core sees it."""

    name: bytes

    def expect(self, most_bytes: int) -> bytes:
        """A ticket for one arena of at most so many bytes."""

    def forget(self, ticket: bytes) -> None:
        """The link that the ticket was for is lost."""

    def arena(self, ticket: bytes) -> Memory | None:
        """What was brought for the ticket and is still there."""


class PeerMemory:
    """Payloads of answers are laid in the shard's window; a piece of it is taken until the frame is acknowledged."""

    __slots__ = ("_window", "memory", "places")

    def __init__(self, memory: Memory, places: ShardPlaces) -> None:
        whole = places.nbytes <= memory.nbytes
        self.memory = memory
        self.places: Mapping[int, BucketPlaces] = places.values if whole else {}
        """Of values, by bucket; none where the arena is too short."""
        self._window = SpareSpace(places.window if whole else range(0))

    def hold(self, let_go: Callable[[], None]) -> Array:
        """All of it, to be read: see `held`."""
        return held(self.memory, let_go)

    def lay(self, parts: Sequence[Buffer], nbytes: int) -> int | None:
        """Copies parts into the window, one behind the other; where they are, or None where there is no room."""
        offset = self._window.take(nbytes) if nbytes >= LEAST_SHARED_BYTES else None
        if offset is not None:
            self._write(offset, parts)
        return offset

    def put(self, bucket: int, first: int, stop: int, parts: Sequence[Buffer]) -> None:
        """Copies the values of slices to the places of their keys."""
        source = np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), np.uint8)
        at = 0
        for _, (start, end) in self.places[bucket].pieces(first, stop):
            self.memory.bytes_at(start, end - start)[:] = source[at : at + end - start]
            at += end - start

    def laid(self, offset: int, nbytes: int) -> bytes:
        """A copy of what was laid there."""
        return self.memory.bytes_at(offset, nbytes).tobytes()

    def values(self, bucket: int, first: int, stop: int) -> bytes:
        """A copy of the values that slices have in the places of their keys."""
        pieces = [place for _, place in self.places[bucket].pieces(first, stop)]
        return b"".join([self.memory.bytes_at(start, end - start).tobytes() for start, end in pieces])

    def give(self, offset: int) -> None:
        """The client has read what was laid there."""
        self._window.give(offset)

    def _write(self, at: int, parts: Sequence[Buffer]) -> None:
        for part in parts:
            view = np.frombuffer(part, np.uint8)
            self.memory.bytes_at(at, len(view))[:] = view
            at += len(view)


def placed(memory: Array, place: Range) -> Array:
    """Bytes of an arena. Raises ProtocolError for those that it has not."""
    if not 0 <= place[0] <= place[1] <= len(memory):
        raise ProtocolError(f"bytes {place[0]} to {place[1]} of an arena that has {len(memory)}")
    return memory[place[0] : place[1]]


# --- The arena of a client as its link to one shard uses it -----------------------------------------------------------


class GivenArrays(Protocol):
    """Arrays in the arena that the store has given out, by key's place, and the rest of it."""

    gradients: dict[int, Array]
    values: dict[int, Array]
    stages: list[SpareSpace]

    def bytes_at(self, offset: int, nbytes: int) -> Array:
        """Bytes of the arena, to be written. Raises StoreError for bytes that it has not."""


def are_given(given: Mapping[int, Array], places: Sequence[int], arrays: Sequence[Array]) -> bool:
    """Whether all of these arrays are those that were given out for their keys."""
    return bool(given) and all(map(is_, map(given.get, places), arrays))


class LinkMemory:
    """Payloads for one shard are laid in its stage; a piece of it is taken until the shard reads it no more."""

    __slots__ = ("_memory", "_stage")

    def __init__(self, memory: GivenArrays, shard: int) -> None:
        self._memory = memory
        self._stage = memory.stages[shard]

    def lay(self, parts: Sequence[Buffer], nbytes: int) -> int | None:
        """Copies parts into the stage, one behind the other; where they are, or None where there is no room."""
        offset = self._stage.take(nbytes) if nbytes >= LEAST_SHARED_BYTES else None
        if offset is None:
            return None
        room = self._memory.bytes_at(offset, nbytes)
        at = 0
        for part in parts:
            view = np.frombuffer(part, np.uint8)
            room[at : at + len(view)] = view
            at += len(view)
        return offset

    def give(self, offset: int) -> None:
        """The shard has read what was laid there."""
        self._stage.give(offset)

    def payload(self, offset: int, nbytes: int) -> memoryview:
        """What the shard has laid for this client. Raises ProtocolError for bytes that the arena has not."""
        try:
            return memoryview(self._memory.bytes_at(offset, nbytes))  # type: ignore[arg-type]
        except StoreError as error:
            raise ProtocolError(f"Values.at: {error}") from error
