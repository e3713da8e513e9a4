"""The numbers that a table's updates were made with, kept for the rows that those updates passed by. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator

import numpy as np

from weft_kernels.kernel import Array
from weft_kernels.rules.record import Hyper


class HyperLog:
    """Updates 1, 2, ... with the hyper-parameters of each, in runs of equal ones: a rate that stays takes no room, one
    that changes at each update 8 bytes a number and 8 for the update.

    Invariants: `_starts` ascend, the first being at most `first`, and each has `len(names)` numbers in `_values`.
    """

    __slots__ = ("_first", "_last", "_names", "_starts", "_values")

    def __init__(self, names: Iterable[str], last: int = 0) -> None:
        """`last` updates were made before; they are forgotten."""
        self._names = tuple(names)
        self._first = last + 1
        self._last = last
        self._starts = array("q")
        self._values = array("d")

    @property
    def first(self) -> int:
        """The earliest update that is known."""
        return self._first

    @property
    def last(self) -> int:
        """The latest update, 0 where there was none."""
        return self._last

    @property
    def nbytes(self) -> int:
        return 8 * (len(self._starts) + len(self._values))

    def told(self) -> tuple[Array, Array]:
        """All of it, for `restored`: first, last and where runs start, int64; and their numbers, float64."""
        return np.array([self._first, self._last, *self._starts], np.int64), np.array(self._values, np.float64)

    @classmethod
    def restored(cls, names: Iterable[str], log: Array, numbers: Array) -> HyperLog:
        """What `told` has told."""
        found = cls(names)
        found._first, found._last = int(log[0]), int(log[1])
        found._starts.extend(log[2:].tolist())
        found._values.extend(numbers.tolist())
        return found

    def append(self, hyper: Hyper) -> None:
        """One update more, with these numbers. Raises KeyError for one that is missing."""
        values = array("d", [hyper[name] for name in self._names])
        if not self._starts or self._values[len(self._values) - len(values) :] != values:
            self._starts.append(self._last + 1)
            self._values.extend(values)
        self._last += 1

    def forget(self, update: int) -> None:
        """Drops the updates up to this one: no row is behind it any more."""
        self._first = max(self._first, min(update, self._last) + 1)
        spent = max(bisect_right(self._starts, self._first) - 1, 0)
        del self._starts[:spent]
        del self._values[: spent * len(self._names)]

    def runs(self, after: int, to: int) -> Iterator[tuple[int, int, Hyper]]:
        """Updates `after` + 1 to `to` as (first, stop, numbers), in order. Raises ValueError where one is not known."""
        if after < to and (after + 1 < self._first or to > self._last):
            raise ValueError(f"updates {after + 1} to {to}: known are {self._first} to {self._last}")
        place = bisect_right(self._starts, after + 1) - 1
        first, count = after + 1, len(self._names)
        while first <= to:
            stop = min(self._starts[place + 1] if place + 1 < len(self._starts) else to + 1, to + 1)
            values = self._values[place * count : (place + 1) * count]
            yield first, stop, dict(zip(self._names, values, strict=True))
            first, place = stop, place + 1
