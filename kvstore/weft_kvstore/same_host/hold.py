"""Bytes of a client's arena that are read where they lie. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from weft_kvstore.arrays.array import Array


class Memory(Protocol):
    """An arena as a mind sees it."""

    nbytes: int

    def bytes_at(self, offset: int, nbytes: int) -> Array:
        """Bytes of it, to be written. Raises StoreError for bytes that it has not."""


class _Hold:
    """What a view of an arena belongs to. That nobody can read a frame's bytes any more is known by nothing but that
    no array over them is left: sums, shelves and rules need not count who still has a part."""

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
