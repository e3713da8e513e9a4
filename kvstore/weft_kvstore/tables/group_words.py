"""A group of eight slots as one 64-bit word, a byte of each id's hash for a slot: all are looked at at once. Pure.

A byte is the slot's fingerprint; 0 is a free slot, `FREED` one that was freed in a full group.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from weft_kvstore.arrays.array import Array

GROUP: Final = 8
FREED: Final = 1

_LEAST_FINGERPRINT: Final = np.uint8(2)
_FINGERPRINT_SHIFT: Final = np.uint64(56)
_ONES: Final = np.uint64(0x0101010101010101)
_HIGHS: Final = np.uint64(0x8080808080808080)
_NOT_FREED: Final = np.uint64(0xFEFEFEFEFEFEFEFE)
_PLACES: Final = np.uint64(0x0001020304050607)
_ONE: Final = np.uint64(1)
_SEVEN: Final = np.uint64(7)


def fingerprints(hashes: Array) -> Array:
    """2 to 255 (n) uint8."""
    return np.maximum((hashes >> _FINGERPRINT_SHIFT).astype(np.uint8), _LEAST_FINGERPRINT)


def eight_times(marks: Array) -> Array:
    """Words (n) all of whose bytes are these fingerprints (n)."""
    found: Array = marks * _ONES
    return found


def zero_bytes(words: Array) -> Array:
    """The high bit of each byte that is 0; above the lowest such byte also of some that are 1."""
    found: Array = words - _ONES
    found &= ~words
    found &= _HIGHS
    return found


def free_bytes(words: Array) -> Array:
    """The same of each slot that has no id: never used, or freed."""
    return zero_bytes(words & _NOT_FREED)


def first_byte(bits: Array) -> Array:
    """The number of the lowest byte whose high bit is set (n) int64; 0 where there is none."""
    lowest = bits & (~bits + _ONE)
    lowest >>= _SEVEN
    lowest *= _PLACES
    lowest >>= _FINGERPRINT_SHIFT
    return lowest.view(np.int64)
