"""Which of the keys' fixed places are taken: a place belongs to one payload from its writing to its acknowledgement."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft_kvstore.same_host.layout import NO_PLACE, Offsets

Numbers = np.ndarray[Any, np.dtype[np.int64]]


class PlaceBook:
    """Keeps account of `offsets[place, key]`; pure. A key has as many payloads under way as it has places: when all are
    taken, the next payload travels as bytes, so nothing ever waits for a place."""

    def __init__(self, offsets: Offsets) -> None:
        self._offsets = offsets
        self._free = offsets != NO_PLACE

    def take(self, keys: Numbers) -> Offsets:
        """Takes a place for each of these distinct keys, and returns the offsets; `NO_PLACE` where none is free."""
        if not len(self._free):
            return np.full(len(keys), NO_PLACE, np.int64)
        free = self._free[:, keys]
        places = free.argmax(axis=0)
        found = free.any(axis=0)
        self._free[places[found], keys[found]] = False
        return np.where(found, self._offsets[places, keys], NO_PLACE)

    def give(self, keys: Numbers, offsets: Offsets) -> None:
        """These places are free again; entries of `NO_PLACE` are passed over. Raises ValueError, and changes nothing,
        for a place that is not taken."""
        asked = offsets != NO_PLACE
        keys, offsets = keys[asked], offsets[asked]
        same = self._offsets[:, keys] == offsets
        wrong = ~(same & ~self._free[:, keys]).any(axis=0)
        if wrong.any():
            first = int(wrong.argmax())
            raise ValueError(f"key {keys[first]}: the place at {offsets[first]} is not taken")
        self._free[same.argmax(axis=0), keys] = True

    def free(self, key: int) -> int:
        """How many places of a key are free."""
        return int(self._free[:, key].sum())
