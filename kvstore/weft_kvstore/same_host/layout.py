"""Where each key's places lie in an arena: a pure function of the keys' lengths. Offsets are in bytes."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

ALIGNMENT: Final = 64
"""Bytes: a cache line, so that no two keys share one, and enough for every dtype and vector instruction."""

NO_PLACE: Final = -1
"""Offset of a key without a place; its payloads travel as bytes."""

Offsets: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Layout:
    """`gradients[place, key]` and `values[place, key]` are offsets, `NO_PLACE` where the key has none.

    Places of one kind and number are one region from a page on, in the order of the keys: keys whose lengths are whole
    cache lines lie without a gap. `spare` is what is left for payloads without a fixed length. `nbytes` is all of it.
    """

    nbytes: int
    gradients: Offsets
    values: Offsets
    spare: range


def lay_out(
    nbytes: Sequence[int],
    *,
    gradient_places: int = 2,
    value_places: int = 1,
    spare_bytes: int = 0,
    most_bytes: int | None = None,
) -> Layout:
    """Places for keys of these lengths, bytes; a key of length 0 has none.

    Two gradient places let the gradient of the next step be written while the last one is not yet taken in. With
    `most_bytes`, the spare part and then keys have their places in the order given until that is reached; the rest have
    none. Raises ValueError for a negative number and for a spare part beyond `most_bytes`.
    """
    lengths = np.asarray(nbytes, np.int64).reshape(-1)
    numbers = (gradient_places, value_places, spare_bytes, 0 if most_bytes is None else most_bytes)
    if min(numbers) < 0 or (lengths < 0).any():
        raise ValueError(
            f"lay_out: lengths and numbers must be at least 0, not {min(*numbers, lengths.min(initial=0))}"
        )
    spare = _whole(spare_bytes, mmap.PAGESIZE)
    regions = gradient_places + value_places
    room = None if most_bytes is None else most_bytes - spare
    if room is not None and room < 0:
        raise ValueError(f"lay_out: {spare} spare bytes are more than the {most_bytes} of the whole")
    ends = np.cumsum(-(-lengths // ALIGNMENT) * ALIGNMENT)
    placed = lengths > 0
    if room is not None and regions:
        placed &= ends <= room // regions // mmap.PAGESIZE * mmap.PAGESIZE
    starts = ends - -(-lengths // ALIGNMENT) * ALIGNMENT
    region = _whole(int(ends[placed].max(initial=0)), mmap.PAGESIZE)
    places = starts + region * np.arange(regions, dtype=np.int64)[:, None]
    places = np.where(placed, places, NO_PLACE)
    begin = regions * region
    return Layout(
        nbytes=begin + spare,
        gradients=places[:gradient_places],
        values=places[gradient_places:],
        spare=range(begin, begin + spare),
    )


def _whole(nbytes: int, unit: int) -> int:
    return -(-nbytes // unit) * unit
