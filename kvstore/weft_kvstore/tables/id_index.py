"""Which row has which id: an open-addressing hash table whose loops run over probes, not over ids. Pure.

A group's eight fingerprints are one word, so a probe compares eight slots at once (the layout of Google's "Swiss
tables"). An id is in the first group, from its own on, that had a free slot: a search ends at a group that has one
which was never used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from weft_kvstore.arrays.array import Array
from weft_kvstore.tables.group_words import GROUP, eight_times, fingerprints, first_byte, zero_bytes
from weft_kvstore.tables.growing_array import GrowingArray
from weft_kvstore.tables.id_slots import IdSlots, next_group

LEAST_IDS: Final = 1 << 10
"""Ids that there is place for at first."""

MOST_ROWS: Final = (1 << 32) - 1

_PIECE: Final = 1 << 14
"""Ids looked for at once: what is made of them stays in the cache."""

_ONE: Final = np.uint64(1)


class IdIndex:
    """Rows by id. `salt` changes where ids lie and nothing else: who does not know it cannot choose ids that collide.

    Invariant: `ids.array[row]` is the id of each row that is here.
    """

    __slots__ = ("_slots", "count", "ids")

    def __init__(self, salt: int) -> None:
        self.ids = GrowingArray(None, np.uint64)
        self.count = 0
        self._slots = IdSlots(self.ids, salt)

    @property
    def nbytes(self) -> int:
        """Bytes of the index and of the ids that it has place for."""
        return len(self._slots) * 5 + len(self.ids) * 8

    def find(self, ids: Array) -> Array:
        """The rows (n) int64 of ids (n) uint64, -1 where there is none."""
        return self._searched(ids)[0]

    def find_or_add(self, ids: Array, number: Callable[[int], Array]) -> tuple[Array, Array]:
        """The rows (n) int64 of ids (n) uint64, distinct: those that are not here get the rows that `number(count)`
        gives out. And the positions (m) of those. One search does for both. Raises MemoryError."""
        self._slots.make_place(self.count + len(ids))  # Before the search, for a slot may then be another.
        rows, ends, marks = self._searched(ids)
        new = np.flatnonzero(rows < 0)
        if len(new):
            rows[new] = numbers = number(len(new))
            self._name(ids[new], numbers)
            for low in range(0, len(new), _PIECE):
                some = new[low : low + _PIECE]
                self._slots.claim(numbers[low : low + _PIECE].astype(np.uint32), ends[some], marks[some])
            self.count += len(new)
        return rows, new

    def add(self, ids: Array, rows: Array) -> None:
        """Gives ids (n) uint64, distinct and none of them here, these rows (n). Raises MemoryError."""
        self.find_or_add(ids, lambda _count: rows)

    def _name(self, ids: Array, rows: Array) -> None:
        highest = int(rows.max()) + 1
        if highest > MOST_ROWS:
            raise MemoryError(f"a shard's part of a table has at most {MOST_ROWS} rows")
        if highest > len(self.ids):
            self.ids.grow(max(highest, len(self.ids) * 3 // 2, LEAST_IDS))
        self.ids.array[rows] = ids

    def remove(self, ids: Array) -> None:
        """Forgets ids (n) uint64, distinct and all of them here. `tidy` is to be called some time after it."""
        for low in range(0, len(ids), _PIECE):
            slots = np.full(len(ids[low : low + _PIECE]), -1, np.int64)
            self._search(ids[low : low + _PIECE], slots=slots)
            self._slots.free(slots)
        self.count -= len(ids)

    def tidy(self) -> Iterator[None]:
        """Makes anew what too many removed ids have passed through; stops after each part."""
        return self._slots.tidy()

    def _searched(self, ids: Array) -> tuple[Array, Array, Array]:
        """For ids (n) the rows (n) int64, -1 where there is none, the group (n) int64 at which the search ended, and
        the fingerprint (n) uint8."""
        if len(ids) <= _PIECE:
            return self._search(ids)
        parts = zip(*(self._search(ids[low : low + _PIECE]) for low in range(0, len(ids), _PIECE)), strict=True)
        rows, ends, marks = (np.concatenate(part) for part in parts)
        return rows, ends, marks

    def _search(self, ids: Array, slots: Array | None = None) -> tuple[Array, Array, Array]:
        """As `_searched`; writes also the slots of those that are here into `slots` (n)."""
        table = self._slots
        words, last = table.fingerprints.array.view(np.uint64), table.last_group
        rows = np.full(len(ids), -1, np.int64)
        left: Array | None = None  # All of them.
        hashes = table.hashes(ids)
        groups, marks = table.groups_of(hashes), fingerprints(hashes)
        ends = groups
        patterns = eight_times(marks)
        for number in range(last + 1):
            word = words.take(groups)
            self._match(ids, left, (groups, zero_bytes(word ^ patterns)), (rows, slots))
            goes_on = zero_bytes(word) == 0
            goes_on &= (rows if left is None else rows.take(left)) < 0
            (on,) = goes_on.nonzero()
            if not on.size:
                break
            if not number:
                ends = groups.copy()
            left, patterns = on if left is None else left.take(on), patterns.take(on)
            groups = next_group(groups.take(on), last)
            ends[left] = groups
        return rows, ends, marks

    def _match(
        self, ids: Array, left: Array | None, where: tuple[Array, Array], found: tuple[Array, Array | None]
    ) -> None:
        """Looks at the slots whose fingerprints match, in each group the first one that is left: `where` are groups and
        bits of their slots, for each id that is `left`, or all; writes rows and slots into `found`."""
        (groups, matches), (rows, slots) = where, found
        rows_of_slots, known = self._slots.rows.array, self.ids.array
        (at,) = matches.nonzero()
        matches, groups, left = matches.take(at), groups.take(at), at if left is None else left.take(at)
        while left.size:
            places = groups * GROUP + first_byte(matches)
            here = rows_of_slots.take(places)
            same = known.take(here) == ids.take(left)
            rows[left.compress(same)] = here.compress(same)
            if slots is not None:
                slots[left.compress(same)] = places.compress(same)
            matches &= matches - _ONE
            (on,) = np.greater(matches != 0, same).nonzero()  # Another one there, and not this one.
            matches, groups, left = matches.take(on), groups.take(on), left.take(on)
