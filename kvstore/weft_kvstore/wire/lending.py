"""Arrays whose bytes travel while others want to write them."""

from __future__ import annotations

import numpy as np

from weft_kvstore.arrays.array import Array
from weft_kvstore.arrays.buffers import bytes_of
from weft_kvstore.wire.out_run import OneBuffer


class Lendable:
    """An array in parts, whose bytes may be on their way to a peer: `lent` (parts) counts how often each is. A part is
    not written while lent. `source` has the bytes, from `start` on."""

    __slots__ = ("array", "lent", "source", "start")

    def __init__(self, array: Array, source: OneBuffer, start: int, parts: int) -> None:
        self.array = array
        self.source = source
        self.start = start
        self.lent = np.zeros(parts, np.int32)

    def is_lent(self, first: int, stop: int) -> bool:
        """Whether any of these parts is."""
        return bool(self.lent[first:stop].any())

    def copied(self) -> Lendable:
        """The same elsewhere, lent to nobody."""
        return lendable(self.array.copy(), len(self.lent))


class Loan:
    """Parts `first` and those behind it, lent until they have arrived; nothing where no array is held."""

    __slots__ = ("_first", "_held")

    def __init__(self, held: Lendable | None, first: int, count: int) -> None:
        self._held = held
        self._first = first
        if held is not None:
            held.lent[first : first + count] += 1

    def give_back(self, first: int, count: int) -> None:
        """So many of the loan's parts have arrived, or never left; numbered from 0 in it."""
        if self._held is not None:
            self._held.lent[self._first + first : self._first + first + count] -= 1


def lendable(array: Array, parts: int) -> Lendable:
    """A C-contiguous array, by itself."""
    return Lendable(array, OneBuffer(bytes_of(array)), 0, parts)
