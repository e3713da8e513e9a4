"""Some rows of a table: ids and values side by side, made distinct, summed, and looked up. No loop over rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from weft_kernels.indexing.rows import summed_rows as added_rows
from weft_kernels.row_copies import put_rows
from weft_kvstore.store import Array


class Rows:
    """Rows (n, width) of the ids (n) int64, or uint64 of a growing table, which are distinct and ascending.

    They may lie in several parts, one behind the other: `values` joins them once somebody wants them as one array.
    """

    __slots__ = ("_parts", "ids")

    def __init__(self, ids: Array, values: Array) -> None:
        self.ids = ids
        self._parts = [values]

    @classmethod
    def of(cls, parts: Sequence[Rows]) -> Rows:
        """Rows of parts, at least one, of which each continues the one before."""
        found = cls(np.concatenate([part.ids for part in parts]), parts[0].values)
        found._parts = [part.values for part in parts]
        return found

    @property
    def values(self) -> Array:
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0]

    @property
    def size(self) -> int:
        """Elements of the values."""
        return sum(part.size for part in self._parts)

    @property
    def nbytes(self) -> int:
        return int(self.ids.nbytes) + sum(part.nbytes for part in self._parts)

    def pieces(self, most: int) -> Iterator[tuple[Array, Array]]:
        """Ids and values of so many rows at most at a time, where they lie."""
        begin = 0
        for part in self._parts:
            for low in range(0, len(part), most):
                some = part[low : low + most]
                yield self.ids[begin : begin + len(some)], some
                begin += len(some)


def is_ascending(ids: Array) -> bool:
    """Whether each id is larger than the one before it."""
    return bool((ids[1:] > ids[:-1]).all())


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


def merged(one: Rows, other: Rows) -> Rows:
    """The sum of both, row by row: `one` before `other`, and what only one has as it is. `one` may be written and be
    part of the sum; `other` is not written.

    Both are sorted, so that one search in the first tells for each row of the second whether it is there and which rows
    are before it; nothing is sorted again.
    """
    if not len(one.ids) or not len(other.ids):
        return one if len(one.ids) else other
    place = np.searchsorted(one.ids, other.ids)
    both = one.ids[np.minimum(place, len(one.ids) - 1)] == other.ids
    if both.all():
        _add_at(one.values, place, other.values)
        return one
    if both.any():
        _add_at(one.values, place[both], other.values.compress(both, axis=0))
    new = np.flatnonzero(~both)
    at = place[new] + np.arange(len(new))
    is_old = np.ones(len(one.ids) + len(new), np.bool_)
    is_old[at] = False
    ids, values = np.empty(len(is_old), one.ids.dtype), np.empty((len(is_old), one.values.shape[1]), one.values.dtype)
    old = np.flatnonzero(is_old)
    ids[old], ids[at] = one.ids, other.ids[new]
    put_rows(values, old, one.values)
    put_rows(values, at, other.values if len(new) == len(other.ids) else other.values.take(new, axis=0))
    return Rows(ids, values)


def _add_at(values: Array, places: Array, more: Array) -> None:
    """Adds to rows whose places ascend."""
    if len(places) == len(values):
        values += more
    else:
        summed = values.take(places, axis=0)
        summed += more
        put_rows(values, places, summed)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Ids as somebody asked for them, and where each row goes.

    `ids` are distinct and ascending; the row of `ids[i]` is written at `places[i]` of the answer, then `copies` (m) are
    filled from `sources` (m). `zeros` are the places of negative ids. `ordered`: the places ascend too.
    """

    ordered: bool
    ids: Array
    places: Array
    copies: Array
    sources: Array
    zeros: Array


def wanted_rows(ids: Array) -> Wanted:
    """Sorts out what was asked for: ids (n) int64 or uint64 in any order, repeated or negative."""
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
    return (ids, values) if real.all() else (ids[real], values[real])
