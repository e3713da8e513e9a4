"""The sum of pushes of rows, slot after slot: rows that several have are added, the others stay where they lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from weft_kernels.row_copies import put_rows
from weft_kvstore.arrays.array import Array
from weft_kvstore.tables.rows import Rows

MOST_PARTS: Final = 16
"""Parts of a sum that each push is looked up in; more of them are put in order first."""


def merged(one: Rows, other: Rows) -> Rows:
    """The sum of both, row by row: `one` before `other`, and what only one has as it is. `one` may be written, and
    parts of both be parts of the sum; `other` is not written.

    Parts are sorted, so that one search tells which rows of another are there too; nothing is sorted again.
    """
    if not len(other):
        return one
    parts = [part for part in one.parts if len(part[0])]
    if len(parts) > MOST_PARTS:
        parts = [_in_order(Rows.of(parts))]
    new = [left for part in other.parts for left in _added(parts, part)]
    return Rows.of([*parts, *new]) if parts or new else one


def _added(parts: list[tuple[Array, Array]], part: tuple[Array, Array]) -> Iterator[tuple[Array, Array]]:
    """Adds rows to those parts that have them; the rest of them, which none has."""
    ids, values = part
    for here, sums in parts:
        if not len(ids):
            return
        if ids[0] > here[-1] or ids[-1] < here[0]:
            continue
        place = here.searchsorted(ids)
        np.minimum(place, len(here) - 1, out=place)
        both = here.take(place) == ids
        if not np.logical_or.reduce(both):
            continue
        if np.logical_and.reduce(both):
            _add_at(sums, place, values)
            return
        _add_at(sums, place.compress(both), values.compress(both, axis=0))
        np.logical_not(both, out=both)
        ids, values = ids.compress(both), values.compress(both, axis=0)
    yield ids, values


def _add_at(values: Array, places: Array, more: Array) -> None:
    """Adds to rows whose places ascend."""
    if len(places) == len(values):
        values += more
    else:
        summed = values.take(places, axis=0)
        summed += more
        put_rows(values, places, summed)


def _in_order(rows: Rows) -> tuple[Array, Array]:
    order = np.argsort(rows.ids)
    return rows.ids.take(order), rows.values.take(order, axis=0)
