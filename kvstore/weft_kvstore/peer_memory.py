"""The arena of a connection's client, as its shard uses it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import numpy as np

from weft_kvstore.codec import Buffer, ProtocolError
from weft_kvstore.hold import Memory, held
from weft_kvstore.ranges import Range
from weft_kvstore.same_host.spare_space import SpareSpace
from weft_kvstore.store import Array

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
    """`window` is where the shard lays payloads of its answers; a piece is taken until the frame is acknowledged."""

    __slots__ = ("_all", "_window", "memory")

    def __init__(self, memory: Memory, window: range) -> None:
        self.memory = memory
        self._all = memory.bytes_at(0, memory.nbytes)
        self._window = SpareSpace(window if window.stop <= memory.nbytes else range(0))

    def hold(self, let_go: Callable[[], None]) -> Array:
        """All of it, to be read: see `held`."""
        return held(self.memory, let_go)

    def lay(self, parts: Sequence[Buffer], nbytes: int) -> int | None:
        """Copies parts into the window, one behind the other; where they are, or None where there is no room."""
        offset = self._window.take(nbytes) if nbytes >= LEAST_SHARED_BYTES else None
        if offset is not None:
            self.write((offset, offset + nbytes), parts)
        return offset

    def give(self, offset: int) -> None:
        """The client has read what was laid there."""
        self._window.give(offset)

    def has(self, place: Range) -> bool:
        """Whether these bytes are in the arena."""
        return place[1] <= self.memory.nbytes

    def write(self, place: Range, parts: Sequence[Buffer]) -> None:
        """Copies parts to a place that it has."""
        at = place[0]
        for part in parts:
            view = np.frombuffer(part, np.uint8)
            self._all[at : at + len(view)] = view
            at += len(view)


def placed(memory: Array, place: Range) -> Array:
    """Bytes of an arena. Raises ProtocolError for those that it has not."""
    if not 0 <= place[0] <= place[1] <= len(memory):
        raise ProtocolError(f"bytes {place[0]} to {place[1]} of an arena that has {len(memory)}")
    return memory[place[0] : place[1]]
