"""Arrays whose bytes travel while others want to write them."""

from __future__ import annotations

from weft_kvstore.buffers import bytes_of
from weft_kvstore.out_run import OneBuffer
from weft_kvstore.store import Array


class Lendable:
    """An array whose bytes may be on their way to a peer: `lent` counts how often. It is not written while lent.
    `source` has its bytes, from `start` on."""

    __slots__ = ("array", "lent", "source", "start")

    def __init__(self, array: Array, source: OneBuffer, start: int) -> None:
        self.array = array
        self.source = source
        self.start = start
        self.lent = 0


def lendable(array: Array) -> Lendable:
    """A C-contiguous array, by itself."""
    return Lendable(array, OneBuffer(bytes_of(array)), 0)


def writable(held: Lendable) -> Lendable:
    """The array, to be written. While its bytes are on their way to somebody, a copy takes its place."""
    return lendable(held.array.copy()) if held.lent else held
