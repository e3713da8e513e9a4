"""The arrays that a client gives out, which its user fills and reads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Final

import numpy as np

from weft_kvstore.arrays import Array
from weft_kvstore.description.records import KeyDescription
from weft_kvstore.process import OwnProcess
from weft_kvstore.same_host.memory import ALIGNMENT, ArenaError, SharedMemory
from weft_kvstore.sharding import Routing

_log = logging.getLogger("weft.store")

MAX_STAGING_BYTES: Final = 64 << 20
"""Of a client's staging area, for each shard: what a slot may be ahead of the others before its gradients travel as
bytes."""


def arena_of(routing: Routing) -> tuple[SharedMemory | None, dict[int, int]]:
    """Memory of a client for the gradients of its dense keys, and the offset of each key's array by the key's index;
    None where it cannot be had. Keys are in the order of their buckets, so that what leaves together is contiguous."""
    offsets: dict[int, int] = {}
    stop = 0
    for bucket in routing.buckets:
        for key_index in bucket.keys:  # Tables have no bytes here.
            if nbytes := routing.slices[key_index].nbytes:
                offsets[key_index] = stop
                stop += -(-nbytes // ALIGNMENT) * ALIGNMENT
    try:
        return SharedMemory(stop, MAX_STAGING_BYTES * routing.shards), offsets
    except ArenaError as error:
        _log.info("payloads travel as bytes, also to shards of this host: %s", error)
        return None, {}


class ClientMemory:
    """The arrays of a client, always the same one for a key that is no table, by its index in the description: those of
    gradients are in its `arena`, where it has one. Any thread may ask, and in a child of the process that made it gets
    a StoreError: what is there is the parent's. Arrays are made under a lock of their own: that takes 0.3 ms a MiB, and
    the thread of the sockets never waits for it."""

    def __init__(self, keys: Sequence[KeyDescription], routing: Routing | None = None) -> None:
        """Without a `routing` there is no arena."""
        self.arena, self._offsets = (None, {}) if routing is None else arena_of(routing)
        self._keys = keys
        self._arrays: dict[tuple[int, bool], Array] = {}
        self._lock = threading.Lock()
        self._process = OwnProcess()

    def gradient(self, key_index: int) -> Array:
        """Where a user writes a key's gradient: zeros at first. Nothing of it is copied on the way to a shard of this
        host. It is pushed like any other; what is written there is read when it is pushed: it must not be written
        before the push's future ends. What a push that has failed adds is uncertain once it is written."""
        return self._array(key_index, gradient=True)

    def value(self, key_index: int) -> Array:
        """Where a user reads a key's value: an array to be `out` of a pull. It has that value when the pull's future
        ends, and nothing certain while a pull into it is under way or after one has failed."""
        return self._array(key_index, gradient=False)

    def close(self) -> None:
        """Shares nothing any more; its arrays stay good. Idempotent."""
        with self._lock:
            arena, self.arena = self.arena, None
            if arena is not None:
                arena.close()

    def _array(self, key_index: int, *, gradient: bool) -> Array:
        self._process.check()  # The parent's locks may be held for ever.
        found = self._arrays.get((key_index, gradient))
        if found is None:
            with self._lock:
                found = self._arrays.get((key_index, gradient))  # Another thread may have asked for it meanwhile.
                if found is None:
                    found = self._arrays[key_index, gradient] = self._made(key_index, gradient=gradient)
        return found

    def _made(self, key_index: int, *, gradient: bool) -> Array:
        key, offset = self._keys[key_index], self._offsets.get(key_index)
        if gradient and self.arena is not None and offset is not None:
            try:
                self.arena.reserve(offset, offset + key.nbytes)
                return self.arena.array(offset, key.shape, key.dtype)
            except ArenaError:
                pass
        # A view of an array that nobody else has. NumPy resizes no view to other bytes, so whoever has it cannot take
        # away the memory that the store may be reading or writing.
        return np.zeros(key.shape, key.dtype)[...]
