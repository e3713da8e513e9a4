"""Some rows of a table: ids and values side by side, made distinct, and looked up. No loop over rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from weft_kernels.indexing.rows import summed_rows as added_rows
from weft_kvstore.arrays.array import Array


class Rows:
    """Rows (n, width) of the ids (n) int64, or uint64 of a growing table, which are distinct.

    They may lie in several parts, each of which ascends; so do all of them one behind the other, unless they are a sum
    (`row_sums`). `ids` and `values` join them once somebody wants them as one array.
    """

    __slots__ = ("_parts",)

    def __init__(self, ids: Array, values: Array) -> None:
        self._parts = [(ids, values)]

    @classmethod
    def of(cls, parts: Sequence[tuple[Array, Array]]) -> Rows:
        """Rows of parts (ids, values), at least one."""
        found = cls.__new__(cls)
        found._parts = list(parts)
        return found

    @property
    def parts(self) -> Sequence[tuple[Array, Array]]:
        """Ids and values, where they lie."""
        return self._parts

    @property
    def ids(self) -> Array:
        self._join()
        return self._parts[0][0]

    @property
    def values(self) -> Array:
        self._join()
        return self._parts[0][1]

    def __len__(self) -> int:
        return sum([len(ids) for ids, _ in self._parts])

    @property
    def size(self) -> int:
        """Elements of the values."""
        return sum([values.size for _, values in self._parts])

    @property
    def nbytes(self) -> int:
        return sum([ids.nbytes + values.nbytes for ids, values in self._parts])

    def pieces(self, most: int) -> Iterator[tuple[Array, Array]]:
        """Ids and values of so many rows at most at a time, where they lie."""
        for ids, values in self._parts:
            if len(ids) <= most:
                yield ids, values
                continue
            for low in range(0, len(ids), most):
                yield ids[low : low + most], values[low : low + most]

    def _join(self) -> None:
        if len(self._parts) > 1:
            ids, values = zip(*self._parts, strict=True)
            self._parts = [(np.concatenate(ids), np.concatenate(values))]


def is_ascending(ids: Array) -> bool:
    """Whether each id is larger than the one before it."""
    return bool(np.logical_and.reduce(ids[1:] > ids[:-1]))


def summed_rows(ids: Array, values: Array) -> Rows:
    """Rows of distinct ids: those of one id summed in their order, those of negative ids left out."""
    ids, values = _without_padding(ids, values)
    if is_ascending(ids):
        return Rows(ids, values)
    order = np.argsort(ids)
    if is_ascending(ids[order]):  # Distinct, in another order: nothing is to be added.
        return Rows(ids[order], values.take(order, axis=0))
    distinct, inverse = np.unique(ids, return_inverse=True)
    return Rows(distinct, added_rows(np, values, inverse, len(distinct)))


def last_rows(ids: Array, values: Array) -> Rows:
    """Rows of distinct ids: of one id the last one, those of negative ids left out."""
    ids, values = _without_padding(ids, values)
    if is_ascending(ids):
        return Rows(ids, values)
    distinct, last = np.unique(ids[::-1], return_index=True)
    return Rows(distinct, values.take(len(ids) - 1 - last, axis=0))


@dataclass(frozen=True, slots=True)
class Wanted:
    """Ids as somebody asked for them, and where each row goes.

    `ids` are distinct and ascending; the row of `ids[i]` is written at `places[i]` of the answer, or at i where that is
    None, then `copies` (m) are filled from `sources` (m). `zeros` are the places of negative ids. `ordered`: the places
    ascend too.
    """

    ordered: bool
    ids: Array
    places: Array | None
    copies: Array
    sources: Array
    zeros: Array


def wanted_rows(ids: Array) -> Wanted:
    """Sorts out what was asked for: ids (n) int64 or uint64 in any order, repeated or negative."""
    if len(ids) and ids[0] >= 0 and is_ascending(ids):
        none = np.zeros(0, np.int64)
        return Wanted(True, ids.copy(), None, none, none, none)
    real = np.flatnonzero(ids >= 0)
    zeros = np.flatnonzero(ids < 0)
    none = real[:0]
    own = ids[real]
    if is_ascending(own):
        return Wanted(True, own, real, none, none, zeros)
    distinct, first, inverse = np.unique(own, return_index=True, return_inverse=True)
    again = np.ones(len(own), bool)
    again[first] = False
    return Wanted(False, distinct, real[first], real[again], real[first[inverse[again]]], zeros)


def _without_padding(ids: Array, values: Array) -> tuple[Array, Array]:
    real = ids >= 0
    return (ids, values) if np.logical_and.reduce(real) else (ids[real], values[real])
