"""The memory that a client process shares with the shards of its host."""

from __future__ import annotations

import os

from weft_kvstore.same_host.errors import ArenaError
from weft_kvstore.same_host.free_memory import free_memory
from weft_kvstore.same_host.layout import Layout
from weft_kvstore.same_host.mapping import Mapping
from weft_kvstore.same_host.sealed_memory import reserve, sealed_memory

MOST_OF_FREE_MEMORY = 0.5
"""Part of the memory that is free which one arena may take: what a process cannot have ends it without a word."""


class Arena:
    """Sealed memory of a layout's size, mapped. One for a client process: a key's array is in one piece even where its
    slices belong to several shards, so all of them map the same memory.

    Nothing of it has a name in any file system; it is gone with the last process that has it. Its arrays stay good
    after `close`. It takes no memory before that is reserved. Raises ArenaError where there can be none: payloads then
    travel as bytes.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._fd: int | None = sealed_memory(layout.nbytes, reserved=False)
        try:
            self.mapping = Mapping(self._fd, layout.nbytes)
        except ArenaError:
            self._close_fd()
            raise

    def reserve(self, start: int, stop: int, *, populate: bool = True) -> None:
        """Takes the memory of these bytes. `populate` maps its pages too, on a thread of their own. Raises
        ArenaError."""
        free = free_memory()
        if free is not None and stop - start > MOST_OF_FREE_MEMORY * free:
            raise ArenaError(f"{stop - start} bytes of an arena, where {free} bytes of memory are free")
        reserve(self.fd, start, stop - start)
        if populate:
            self.mapping.populate_behind(start, stop)

    @property
    def nbytes(self) -> int:
        return self.layout.nbytes

    @property
    def fd(self) -> int:
        """The descriptor, to be given to a shard. Raises ArenaError once closed."""
        if self._fd is None:
            raise ArenaError("the arena was closed")
        return self._fd

    def close(self) -> None:
        """Offers it to nobody any more. Idempotent."""
        self._close_fd()
        self.mapping.release()

    def _close_fd(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_fd", None) is not None:
            self._close_fd()
