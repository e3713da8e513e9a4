"""What compression has left out so far and a sender still owes, by key: a part of every snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from weft_kernels.kernel import Array
from weft_kvstore.compression.description import CompressionError

_ROOM: Final = "residual"
_MERGED: Final = "merged"


def residual_name(key: str, slot: int | None) -> str:
    """The array's name in a snapshot: of a slot's gradients, or, slot None, of what shards owe to all workers."""
    return f"{_ROOM}/{_MERGED if slot is None else slot}/{key}"


class Residuals:
    """One sender's: of a worker its slot's, of a shard (slot None) those of merged gradients. `arrays[key]` (elements)
    are written by encoders; they begin at 0, and their memory is taken as it is written."""

    def __init__(self, slot: int | None, keys: Mapping[str, tuple[int, np.dtype[Any]]]) -> None:
        """`keys`: of each key with a residual how many elements this sender sends, and their dtype."""
        self.slot = slot
        self.arrays: dict[str, Array] = {key: np.zeros(size, dtype) for key, (size, dtype) in keys.items()}

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())

    def export(self) -> dict[str, Array]:
        """Copies, by name: what is owed after the step that was encoded last."""
        return {residual_name(key, self.slot): array.copy() for key, array in self.arrays.items()}

    def restore(self, named: Mapping[str, Array]) -> None:
        """Takes on what `export` gave; keys that are not named begin at 0 again.

        Raises CompressionError, which names the array, for one that is not this sender's or does not fit; then nothing
        has changed.
        """
        mine = {residual_name(key, self.slot): array for key, array in self.arrays.items()}
        for name, array in named.items():
            own = mine.get(name)
            if own is None:
                raise CompressionError(f"{name}: there is no such residual here")
            if array.dtype != own.dtype or array.shape != own.shape:
                told = f"{array.dtype} of shape {array.shape}"
                raise CompressionError(f"{name}: {told}, not {own.size} elements of {own.dtype}")
            if not np.isfinite(array).all():
                raise CompressionError(f"{name}: not all of it is finite")
        for name, own in mine.items():
            own[:] = named.get(name, 0)


def dealt(named: Mapping[str, Array], slots: Mapping[str, Sequence[int]]) -> dict[str, Array]:
    """Slots' residuals for other slots: of each key the contributing ones, in order.

    Merging is a sum, so who owes a part does not matter, as long as nothing is lost: of n slots the i-th former one's
    part goes to slots[i mod n], added in order. Raises CompressionError for a key without slots.
    """
    former: dict[str, list[tuple[int, Array]]] = {}
    for name, array in named.items():
        slot, key = _slot_and_key(name)
        former.setdefault(key, []).append((slot, array))
    new: dict[str, Array] = {}
    for key, parts in former.items():
        places = slots.get(key, ())
        if not places:
            raise CompressionError(f"{residual_name(key, parts[0][0])}: no slot contributes to key {key!r} any more")
        for place, (_, array) in enumerate(sorted(parts, key=lambda part: part[0])):
            name = residual_name(key, places[place % len(places)])
            new[name] = new[name] + array if name in new else array.copy()
    return new


def _slot_and_key(name: str) -> tuple[int, str]:
    parts = name.split("/", 2)
    if len(parts) != 3 or parts[0] != _ROOM or not (parts[1].isascii() and parts[1].isdigit()):
        raise CompressionError(f"{name}: not the name of a slot's residual")
    return int(parts[1]), parts[2]
