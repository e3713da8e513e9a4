"""Rows of a table by their ids or numbers: checked, made distinct, looked up and added up. Pure."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np

from weft_kernels.indexing import summed_rows as added_rows
from weft_kernels.row_copies import put_rows, taken_rows
from weft_kvstore.arrays import Array
from weft_kvstore.description.records import KeyDescription
from weft_kvstore.errors import PushRefusedError, StoreRefusedError

# --- Ids of a table's rows as a caller hands them over ----------------------------------------------------------------
# Ids of a table of fixed size are int64. Those of a growing one may be int64 or uint64: a negative int64 is padding, as
# everywhere, and 2^63 and above are to be had as uint64, of which none is padding. Both name the same rows.


def check_ids(ids: Array, key: KeyDescription, where: str) -> int | None:
    """Returns `before_padding` of the ids. Raises StoreRefusedError if they can be no ids of the table."""
    dtypes = [np.int64] if key.growth is None else [np.int64, np.uint64]
    if ids.dtype not in dtypes or ids.ndim != 1:
        wanted = " or ".join(f"{np.dtype(one)}[n]" for one in dtypes)
        raise StoreRefusedError(f"{where}: ids are {ids.dtype}{list(ids.shape)}, not {wanted}")
    count = before_padding(ids)
    if key.growth is None and count != 0:
        largest = int(ids.max() if count is None else ids[count - 1])
        if largest >= key.shape[0]:
            raise StoreRefusedError(f"{where}: id {largest}: the table has rows 0 to {key.shape[0] - 1}")
    return count


def before_padding(ids: Array) -> int | None:
    """How many ids come before the padding, where they ascend and all padding is behind them; else None."""
    count = len(ids)
    if count and ids[-1] < 0:
        negative = ids < 0
        count = int(negative.argmax())
        if not np.logical_and.reduce(negative[count:]):
            return None
    return count if not count or (ids[0] >= 0 and is_ascending(ids[:count])) else None


def is_ascending(ids: Array) -> bool:
    """Whether each id is larger than the one before it."""
    return bool(np.logical_and.reduce(ids[1:] > ids[:-1]))


# --- Some rows of a table: ids and values side by side, made distinct, and looked up ----------------------------------
# No loop over rows.


class Rows(NamedTuple):
    """Rows (n, width) of the ids (n) int64, or uint64 of a growing table, which are distinct.

    A sum (`merging`) is a list of runs, in each of which ids ascend. The rows of a run at the positions `elsewhere` (m)
    were added to a run before it; they are zeros here.
    """

    ids: Array
    values: Array
    elsewhere: Array | None = None


def batches(runs: Iterable[Rows], most: int) -> list[Rows]:
    """The same rows in runs of at most so many. What is cut may be a copy, without the rows that are elsewhere."""
    found: list[Rows] = []
    for run in runs:
        if len(run.ids) <= most:
            found.append(run)
            continue
        ids, values = own_rows(run)
        found += [Rows(ids[low : low + most], values[low : low + most]) for low in range(0, len(ids), most)]
    return found


def own_rows(run: Rows) -> tuple[Array, Array]:
    """Ids and values without those of rows that are elsewhere."""
    if run.elsewhere is None:
        return run.ids, run.values
    own = np.ones(len(run.ids), np.bool_)
    own[run.elsewhere] = False
    return run.ids.compress(own), run.values.compress(own, axis=0)


def distinct_ids(ids: Array, count: int | None) -> tuple[Array, Array | None]:
    """The distinct ids, ascending, without padding, and which of them each of the ids (n) is: (n) int64, -1 for
    padding; None where they are the same. `count`: what `before_padding` says of the ids."""
    if count == len(ids):
        return ids, None
    if count is not None:
        return ids[:count], np.where(ids < 0, -1, np.arange(len(ids)))
    distinct, index = np.unique(ids, return_inverse=True)
    padding = np.count_nonzero(distinct < 0)
    return distinct[padding:], np.maximum(index - padding, -1)


def spread_rows(rows: Array, index: Array) -> Array:
    """The row (n, width) that each of `index` names; zeros for -1."""
    found = taken_rows(rows, np.maximum(index, 0)) if len(rows) else np.zeros((len(index), rows.shape[1]), rows.dtype)
    found[index < 0] = 0
    return found


def summed_rows(
    ids: Array, values: Array, count: int | None, *, known: tuple[Array, Array | None] | None = None
) -> Rows:
    """Rows of distinct ids: those of one id summed in their order, those of negative ids left out. `count`: what
    `before_padding` says of the ids; `known` what `distinct_ids` does, where that is known."""
    distinct, index = known or distinct_ids(ids, count)
    if index is None or count is not None:
        return Rows(distinct, values[:count])
    if len(distinct) == len(ids):  # They have another order: nothing is to be added.
        return Rows(distinct, values.take(np.argsort(ids), axis=0))
    return Rows(distinct, added_rows(np, values, index, len(distinct), start=-0.0))


def last_rows(ids: Array, values: Array) -> Rows:
    """Rows of distinct ids, copied: of one id the last one, those of negative ids left out."""
    distinct, last = np.unique(ids[::-1], return_index=True)
    padding = np.count_nonzero(distinct < 0)
    return Rows(distinct[padding:], values.take(len(ids) - 1 - last[padding:], axis=0))


class Chunks:
    """Arrays side by side, of which the first has ids, that come in segments of `count` chunks; all but the last chunk
    have as many rows. What is kept is what has come: a number of chunks that a peer claims takes no memory."""

    __slots__ = ("_arrived", "_segments", "count")

    def __init__(self, count: int) -> None:
        self.count = count
        self._arrived: set[int] = set()
        self._segments: dict[int, tuple[Array, ...]] = {}

    def add(self, first: int, count: int, chunk_rows: int, arrays: tuple[Array, ...], where: str) -> Sequence[Any]:
        """Takes in a segment of chunks, which ascends, each of them once: the segments in their order, as they came,
        once all have; none before. Raises PushRefusedError where they do not ascend."""
        new = [number for number in range(first, first + count) if number not in self._arrived]
        segments = {first: arrays}
        if len(new) < count:
            lows = {number: (number - first) * chunk_rows for number in new}
            segments = {number: tuple([one[low : low + chunk_rows] for one in arrays]) for number, low in lows.items()}
        if len(self._arrived) + len(new) < self.count:
            self._segments |= segments
            self._arrived.update(new)
            return ()
        whole = [one for _, one in sorted((self._segments | segments).items(), key=itemgetter(0))]
        for (before, *_), (behind, *_) in pairwise(whole):
            if not before[-1] < behind[0]:
                raise PushRefusedError(f"{where}: rows of its chunks do not ascend")
        return whole


# --- The sum of pushes of rows, slot after slot: rows that several have are added, the others stay where they lie -----


MOST_RUNS: Final = 16
SMALL_ELEMENTS: Final = 1 << 16
"""A push is looked up in each run of a sum. Once more than `MOST_RUNS` of them have at most `SMALL_ELEMENTS` elements,
these are copied into one. To copy larger runs takes longer than to look."""

FEW_ELSEWHERE: Final = 1 / 8
"""If more of a run's rows are in runs before it, they are left out of it, which copies all others; else they stay, as
zeros."""

SEARCH_COST: Final = 16
"""So many ids are merged in the time in which one is searched for."""


def merging(total: list[Rows], gradient: Iterable[Rows]) -> Generator[int, None, list[Rows]]:
    """Makes the sum of both, row by row: `total` before `gradient`, and what only one has as it is. Both may be
    written, and their runs be runs of the sum. Stops often, with how many elements it has used since it last did.
    """
    runs, left = [run for run in total if len(run.ids)], list[Rows]()
    small = [run for run in runs if run.values.size <= SMALL_ELEMENTS]
    if len(small) > MOST_RUNS:
        ids, values = map(np.concatenate, zip(*map(own_rows, small), strict=True))
        order = np.argsort(ids)
        # First, as a large run has zeros for rows that are in a small run before it.
        runs = [run for run in runs if run.values.size > SMALL_ELEMENTS]
        runs.insert(0, Rows(ids.take(order), taken_rows(values, order)))
        yield values.size
    least, greatest = [np.array([run.ids[end] for run in runs]) for end in (0, -1)]
    for ids, values, _ in gradient:
        is_there: Array | None = None
        among = ((least <= ids[-1]) & (greatest >= ids[0])).nonzero()[0].tolist() if runs and len(ids) else []
        for here, sums, _ in [runs[number] for number in among]:
            at, positions, looked_at = _common(ids, here)
            if at.size:
                if is_there is None:
                    is_there = np.zeros(len(ids), np.bool_)
                else:  # A row is added once: where it is not elsewhere.
                    is_new = ~is_there.take(at)
                    at, positions = at.compress(is_new), positions.compress(is_new)
                is_there[at] = True
                summed = taken_rows(sums, positions)
                summed += taken_rows(values, at)
                put_rows(sums, positions, summed)
                looked_at += summed.size
            yield looked_at
        if is_there is None:
            left.append(Rows(ids, values))
            continue
        (at,) = is_there.nonzero()
        if len(at) > FEW_ELSEWHERE * len(ids):
            left.append(Rows(*own_rows(Rows(ids, values, at))))
        else:
            values[at] = 0
            left.append(Rows(ids, values, at))
    return [*runs, *[run for run in left if len(run.ids)]] or total


def _common(ids: Array, here: Array) -> tuple[Array, Array, int]:
    """Where the ids are that both have, in `ids` and in `here`, which ascend; how many were looked at for that."""
    count, low = len(ids), 0
    if len(here) > 2 * count:
        if len(here) > SEARCH_COST * count:
            return *_searched(ids, here), SEARCH_COST * count
        # Chunks of a push come one by one, where a sum may be in order as a whole.
        low = int(here.searchsorted(ids[0]))
        here = here[low : int(here.searchsorted(ids[-1], "right"))]
    elif count > SEARCH_COST * len(here):
        return *_searched(here, ids)[::-1], SEARCH_COST * len(here)
    every = np.concatenate((here, ids))
    every.sort(kind="stable")  # Of two sequences that ascend: one is merged into the other.
    (twice,) = (every[1:] == every[:-1]).nonzero()
    if not twice.size:
        return twice, twice, len(every)
    positions = here.searchsorted(every.take(twice))
    twice -= positions  # What is before a row there is before it in one of both.
    if low:
        positions += low
    return twice, positions, len(every)


def _searched(few: Array, many: Array) -> tuple[Array, Array]:
    """Where the ids are that both have, in `few` and in `many`."""
    found = many.searchsorted(few)
    np.minimum(found, len(many) - 1, out=found)
    (at,) = (many.take(found) == few).nonzero()
    return at, found.take(at)
