"""Arrays of the host: their bytes, ranges of numbers, sums without rounding. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

# --- What arrays of the host are, whatever is in them -----------------------------------------------------------------


Array = np.ndarray[Any, np.dtype[Any]]


# --- The bytes of arrays ----------------------------------------------------------------------------------------------


Buffer: TypeAlias = bytes | bytearray | memoryview


def bytes_of(array: Array) -> memoryview:
    """The bytes of a C-contiguous array, as a view; empty for an empty one."""
    if not array.size:
        return memoryview(b"")
    return memoryview(array.reshape(-1)).cast("B")  # type: ignore[arg-type]  # mypy does not know arrays as buffers


# --- Numbers of a few slices, which Python looks at in less time than NumPy takes to begin ----------------------------
# The number of one slice is told by its place, not by a range of one: that takes a fifth of the time.


FEW: Final = 32


# --- Sets of numbers as ranges of adjacent ones -----------------------------------------------------------------------


Range: TypeAlias = tuple[int, int]
"""From the first to before the second."""


class Ranges:
    """A set of numbers. Invariants: its ranges ascend, none is empty, and between two of them a number is missing."""

    __slots__ = ("_first", "_stop")

    def __init__(self, *ranges: Range) -> None:
        """Ranges in ascending order, between two of which a number is missing."""
        self._first: list[int] = []
        self._stop: list[int] = []
        for first, stop in ranges:
            self._first.append(first)
            self._stop.append(stop)

    def __iter__(self) -> Iterator[Range]:
        return iter(zip(self._first, self._stop, strict=True))

    @property
    def hull(self) -> Range:
        """From its first number to behind its last; it must have one."""
        return self._first[0], self._stop[-1]

    def overlaps(self, first: int, stop: int) -> list[Range]:
        """What it has of a range."""
        if len(self._first) == 1:
            begin, end = max(self._first[0], first), min(self._stop[0], stop)
            return [(begin, end)] if begin < end else []
        low = bisect_right(self._stop, first)
        high = bisect_left(self._first, stop)
        return [(max(self._first[at], first), min(self._stop[at], stop)) for at in range(low, high)]

    def add(self, first: int, stop: int) -> None:
        low, high = bisect_left(self._stop, first), bisect_right(self._first, stop)
        if low < high:
            first, stop = min(first, self._first[low]), max(stop, self._stop[high - 1])
        self._first[low:high], self._stop[low:high] = [first], [stop]

    def remove(self, first: int, stop: int) -> bool:
        """Whether none is left."""
        low, high = bisect_right(self._stop, first), bisect_left(self._first, stop)
        if low < high:
            begin, end = self._first[low], self._stop[high - 1]
            left, right = begin < first, stop < end
            self._first[low:high], self._stop[low:high] = (
                [begin] * left + [stop] * right,
                [first] * left + [end] * right,
            )
        return not self._first


def ranges_where(wanted: Array, offset: int = 0) -> list[Range]:
    """The ranges of places (n) bool that are true, numbered from `offset`."""
    if len(wanted) <= 1:  # As small keys are: the common case costs no work on arrays.
        return [(offset, offset + 1)] if len(wanted) and wanted[0] else []
    return [(first, stop) for first, stop, is_wanted in ranges_alike(wanted.view(np.int8), offset) if is_wanted]


Alike: TypeAlias = tuple[int, int, int]
"""From the first to before the second, of which all have the third."""


def ranges_alike(values: Array, offset: int = 0) -> list[Alike]:
    """Ranges of equal numbers (n), places numbered from `offset`."""
    count = len(values)
    if not count:
        return []
    first = int(values[0])
    if values.tolist().count(first) == count if count <= FEW else (values == first).all():
        return [(offset, offset + count, first)]
    edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    return [(a + offset, b + offset, int(values[a])) for a, b in pairwise(edges)]


# --- Elements of slices that wait for something, to be taken by ranges of slices --------------------------------------


class Segment(NamedTuple):
    """Slices `first` to before `stop`, and their elements, an array, or of a table its rows; None where there is
    nothing to be had for them."""

    first: int
    stop: int
    elements: Any


# --- Sums of numbers without any rounding, so that no order or grouping of them can be told from the result -----------
# A sum is an integer in units of 2^-1130, below which no product of float64's bits lies. On the wire it is a few
# float64 numbers whose exact sum it is.


UNIT_EXPONENT: Final = -1130
MANTISSA_BITS: Final = 53
HALF_BITS: Final = 26


def exact_sum(values: Array) -> int | None:
    """The sum of values (n) float64, of at most 2^26, in units of 2^-1130; None where one of them is not finite."""
    if not np.isfinite(values).all():
        return None
    mantissas, exponents = np.frexp(values)
    whole = np.ldexp(mantissas, MANTISSA_BITS).astype(np.int64)
    least = int(exponents.min(initial=0))
    total = 0
    for shift, halves in ((HALF_BITS, whole >> HALF_BITS), (0, whole & ((1 << HALF_BITS) - 1))):
        sums = np.bincount(exponents - least, halves)  # Of so many halves float64 rounds none.
        total += sum([int(one) << (shift + position) for position, one in enumerate(sums.tolist())])
    return total << (least - MANTISSA_BITS - UNIT_EXPONENT)


def terms_of(total: int) -> list[float]:
    """Float64 numbers, the largest first, whose exact sum is `total`, which is at least 0; infinity beyond float64."""
    terms: list[float] = []
    while total:
        shift = max(total.bit_length() - MANTISSA_BITS, 0)
        head = total >> shift
        try:
            terms.append(math.ldexp(float(head), shift + UNIT_EXPONENT))
        except OverflowError:
            return [math.inf]
        total -= head << shift
    return terms


def norm_of(terms: Iterable[float]) -> float:
    """The root of the sum of squares: the sum is rounded once, so the order of the terms is nothing."""
    try:
        return math.sqrt(math.fsum(terms))
    except (OverflowError, ValueError):
        return math.inf
