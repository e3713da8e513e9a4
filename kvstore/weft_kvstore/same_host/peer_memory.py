"""The arena of a connection's client, as its shard uses it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import numpy as np

from weft_kvstore.arrays.array import Array
from weft_kvstore.arrays.buffers import Buffer
from weft_kvstore.arrays.ranges import Range
from weft_kvstore.same_host.hold import Memory, held
from weft_kvstore.same_host.shared_layout import LotPlaces, ShardPlaces
from weft_kvstore.same_host.spare_space import SpareSpace
from weft_kvstore.wire.codec import ProtocolError

LEAST_SHARED_BYTES: Final = 16 << 10
"""A shorter payload travels as bytes: that costs no more."""


class Arenas(Protocol):
    """Where clients of this host bring their arenas, as the shard's mind sees it."""

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
        self.places: Mapping[int, LotPlaces] = places.values if whole else {}
        """Of values, by lot; none where the arena is too short."""
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

    def put(self, lot: int, first: int, stop: int, parts: Sequence[Buffer]) -> None:
        """Copies the values of slices to the places of their keys."""
        source = np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), np.uint8)
        at = 0
        for _, (start, end) in self.places[lot].pieces(first, stop):
            self.memory.bytes_at(start, end - start)[:] = source[at : at + end - start]
            at += end - start

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
