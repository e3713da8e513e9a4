"""The arena of a client as its link to one shard uses it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_
from typing import Protocol

import numpy as np

from weft_kvstore.arrays.array import Array
from weft_kvstore.arrays.buffers import Buffer
from weft_kvstore.errors import StoreError
from weft_kvstore.same_host.peer_memory import LEAST_SHARED_BYTES
from weft_kvstore.same_host.spare_space import SpareSpace
from weft_kvstore.wire.codec import ProtocolError


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
