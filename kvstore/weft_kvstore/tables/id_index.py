"""Which row has which id: an open-addressing hash table whose loops run over probes, not over ids. Pure.

Slots lie in groups of eight. A group's eight fingerprints, one byte of the hash each, are one 64-bit word, so a probe
compares eight slots at once (the layout of Google's "Swiss tables"); 0 is a free slot, 1 one that was freed in a full
group. A second array has the rows. An id is in the first group, from its own on, that had a free slot: a search ends at
a group with a byte of 0.

Groups lie in partitions. While there is one it doubles; a full-sized one is split instead, partition by partition in
turn (Litwin, "Linear hashing", VLDB 1980). So no more than one partition is ever made anew at once, and a slot costs
5 bytes at a fill of 0.375 to 0.75.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from weft_kernels.id_draws import mixed
from weft_kvstore.arrays.array import Array
from weft_kvstore.tables.growing_array import GrowingArray

GROUP: Final = 8
LEAST_SLOTS: Final = 1 << 10
MOST_SLOTS: Final = 1 << 16
"""Slots of a partition, at least and at most: some milliseconds to make one anew, and its arrays fit a cache."""

MOST_FILLED: Final = 0.75
"""Of a partition's slots; on the average half of it, since those that are split have half of the others'."""

MOST_FREED: Final = 1 / 16
"""Slots of a partition that may be marked as freed before it is made anew: those do not end a search."""

MOST_ROWS: Final = (1 << 32) - 1

_PIECE: Final = 1 << 14
"""Ids looked for at once: what is made of them stays in the cache."""

_BITS_OF_PARTITION: Final = np.uint64(20)
_FINGERPRINT_SHIFT: Final = np.uint64(56)
_ONES: Final = np.uint64(0x0101010101010101)
_HIGHS: Final = np.uint64(0x8080808080808080)
_NOT_FREED: Final = np.uint64(0xFEFEFEFEFEFEFEFE)
_PLACES: Final = np.uint64(0x0001020304050607)
_FREED: Final = 1
_LEAST_FINGERPRINT: Final = np.uint8(2)
_ONE: Final = np.uint64(1)
_SEVEN: Final = np.uint64(7)


class IdIndex:
    """Rows by id. `salt` changes where ids lie and nothing else: who does not know it cannot choose ids that collide.

    Invariants: `ids.array[row]` is the id of each row that is here; a partition has `_slots` slots, at most
    `MOST_FILLED` of them used on the average of those of its age, and at least one free.
    """

    __slots__ = ("_fingerprints", "_freed", "_partitions", "_rows", "_salt", "_slots", "count", "ids")

    def __init__(self, salt: int) -> None:
        self._salt = np.uint64(salt & ((1 << 64) - 1))
        self.ids = GrowingArray(None, np.uint64)
        self.count = 0
        self._slots = LEAST_SLOTS
        self._partitions = 1
        self._freed = np.zeros(1, np.int64)
        self._fingerprints = GrowingArray(None, np.uint8)
        self._rows = GrowingArray(None, np.uint32)
        self._fingerprints.grow(self._slots)
        self._rows.grow(self._slots)

    @property
    def nbytes(self) -> int:
        """Bytes of the index and of the ids that it has place for."""
        return self._partitions * self._slots * 5 + len(self.ids) * 8

    def find(self, ids: Array) -> Array:
        """The rows (n) int64 of ids (n) uint64, -1 where there is none."""
        return self._searched(ids)[0]

    def find_or_add(self, ids: Array, number: Callable[[int], Array]) -> tuple[Array, Array]:
        """The rows (n) int64 of ids (n) uint64, distinct: those that are not here get the rows that `number(count)`
        gives out. And the positions (m) of those. One search does for both. Raises MemoryError."""
        self._make_place(len(ids))  # Before the search, for a partition that is split is another place.
        rows, ends, marks = self._searched(ids)
        new = np.flatnonzero(rows < 0)
        if len(new):
            rows[new] = numbers = number(len(new))
            self._name(ids[new], numbers)
            for low in range(0, len(new), _PIECE):
                some = new[low : low + _PIECE]
                self._claim(numbers[low : low + _PIECE].astype(np.uint32), ends[some], marks[some])
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
            self.ids.grow(max(highest, len(self.ids) * 3 // 2, LEAST_SLOTS))
        self.ids.array[rows] = ids

    def remove(self, ids: Array) -> None:
        """Forgets ids (n) uint64, distinct and all of them here. `tidy` is to be called some time after it."""
        for low in range(0, len(ids), _PIECE):
            slots = np.full(len(ids[low : low + _PIECE]), -1, np.int64)
            self._search(ids[low : low + _PIECE], slots=slots)
            words = self._fingerprints.array.view(np.uint64)[slots // GROUP]
            ends = _zero_bytes(words) != 0  # before any of these goes: a search may have passed a full group
            self._fingerprints.array[slots] = np.where(ends, 0, _FREED)
            np.add.at(self._freed, slots[~ends] // self._slots, 1)
        self.count -= len(ids)

    def tidy(self) -> Iterator[None]:
        """Makes partitions anew in which too many slots are marked as freed; stops after each."""
        for partition in np.flatnonzero(self._freed > self._slots * MOST_FREED):
            self._remake(int(partition), split=False)
            yield

    def _hashes(self, ids: Array) -> Array:
        return mixed(ids ^ self._salt)

    def _partition_of(self, hashes: Array) -> Array:
        """Linear hashing: one bit more of the hash names those that are split already."""
        if self._partitions == 1:
            return np.zeros(len(hashes), np.uint64)
        level = self._partitions.bit_length()
        found = hashes & np.uint64((1 << level) - 1)
        if self._partitions & (self._partitions - 1):
            beyond = (found >= np.uint64(self._partitions)).view(np.uint8).astype(np.uint64)
            beyond <<= np.uint64(level - 1)  # The bit that those have in common.
            found ^= beyond
        else:
            found &= np.uint64(self._partitions - 1)
        return found

    def _groups_of(self, hashes: Array) -> Array:
        """Each id's first group (n) int64."""
        groups = np.uint64(self._slots // GROUP)
        found = hashes >> _BITS_OF_PARTITION
        found &= groups - _ONE
        if self._partitions > 1:
            found += self._partition_of(hashes) * groups
        return found.view(np.int64)

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
        words, last = self._fingerprints.array.view(np.uint64), self._slots // GROUP - 1
        rows = np.full(len(ids), -1, np.int64)
        left: Array | None = None  # All of them.
        hashes = self._hashes(ids)
        groups, marks = self._groups_of(hashes), _fingerprints(hashes)
        ends = groups
        patterns = marks * _ONES  # the byte eight times
        for number in range(last + 1):
            word = words.take(groups)
            self._match(ids, left, (groups, _zero_bytes(word ^ patterns)), (rows, slots))
            goes_on = _zero_bytes(word) == 0
            goes_on &= (rows if left is None else rows.take(left)) < 0
            (on,) = goes_on.nonzero()
            if not on.size:
                break
            if not number:
                ends = groups.copy()
            left, patterns = on if left is None else left.take(on), patterns.take(on)
            groups = _next_group(groups.take(on), last)
            ends[left] = groups
        return rows, ends, marks

    def _match(
        self, ids: Array, left: Array | None, where: tuple[Array, Array], found: tuple[Array, Array | None]
    ) -> None:
        """Looks at the slots whose fingerprints match, in each group the first one that is left: `where` are groups and
        bits of their slots, for each id that is `left`, or all; writes rows and slots into `found`."""
        (groups, matches), (rows, slots) = where, found
        (at,) = matches.nonzero()
        matches, groups, left = matches.take(at), groups.take(at), at if left is None else left.take(at)
        while left.size:
            places = groups * GROUP + _first_byte(matches)
            here = self._rows.array.take(places)
            same = self.ids.array.take(here) == ids.take(left)
            rows[left.compress(same)] = here.compress(same)
            if slots is not None:
                slots[left.compress(same)] = places.compress(same)
            matches &= matches - _ONE
            (on,) = np.greater(matches != 0, same).nonzero()  # Another one there, and not this one.
            matches, groups, left = matches.take(on), groups.take(on), left.take(on)

    def _claim(self, rows: Array, groups: Array, marks: Array) -> None:
        """Puts rows (n) uint32 with fingerprints (n), whose ids are not here, into the first free slots from groups (n)
        on, which it writes; of two that find the same one, the other looks again."""
        words, last, some_freed = self._fingerprints.array.view(np.uint64), self._slots // GROUP - 1, self._freed.any()
        while rows.size:
            free = _zero_bytes(words.take(groups) & _NOT_FREED)
            places = groups * GROUP + _first_byte(free)
            full = np.flatnonzero(free == 0)
            if full.size:
                groups[full] = _next_group(groups[full], last)
                won = free != 0
                self._rows.array[places[won]] = rows[won]
                won &= self._rows.array.take(places) == rows
            else:
                self._rows.array[places] = rows
                won = self._rows.array.take(places) == rows
            taken = places[won]
            if some_freed:
                freed = self._fingerprints.array[taken] == _FREED
                np.subtract.at(self._freed, taken[freed] // self._slots, 1)
            self._fingerprints.array[taken] = marks[won]
            on = np.flatnonzero(~won)
            rows, groups, marks = rows[on], groups[on], marks[on]

    def _make_place(self, more: int) -> None:
        """Doubles the one partition, or splits as many in turn as rows that come need."""
        wanted = self.count + more
        while self._partitions == 1 and wanted > self._slots * MOST_FILLED and self._slots < MOST_SLOTS:
            self._double()
        if self._partitions == 1 and wanted <= self._slots * MOST_FILLED:
            return
        while wanted > self._partitions * self._slots * MOST_FILLED / 2:
            level = self._partitions.bit_length() - 1
            total = self._partitions + 1
            self._enlarge(total * self._slots)
            self._freed = np.append(self._freed, 0)
            self._partitions = total
            self._remake(total - 1 - (1 << level), split=True)

    def _double(self) -> None:
        rows, hashes = self._kept(0)
        self._enlarge(2 * self._slots)
        self._slots *= 2
        self._fill((0,), rows, hashes, self._home_of(hashes))

    def _enlarge(self, slots: int) -> None:
        """Place for so many slots, and for the next few partitions: what is not written takes no memory."""
        if slots > len(self._rows):
            slots += slots // 4 // MOST_SLOTS * MOST_SLOTS
            self._fingerprints.grow(slots)
            self._rows.grow(slots)

    def _remake(self, partition: int, *, split: bool) -> None:
        """Makes a partition anew, or two of it: the other is the last."""
        rows, hashes = self._kept(partition)
        order = self._home_of(hashes)
        if not split:
            self._fill((partition,), rows, hashes, order)
            return
        level = np.uint64(self._partitions.bit_length() - 1 - ((self._partitions & (self._partitions - 1)) == 0))
        moves = (hashes >> level).astype(np.uint16) & np.uint16(1)
        order |= moves * np.uint16(self._slots // GROUP)
        self._fill((partition, self._partitions - 1), rows, hashes, order)

    def _kept(self, partition: int) -> tuple[Array, Array]:
        """The rows of a partition, and their ids' hashes."""
        part = slice(partition * self._slots, (partition + 1) * self._slots)
        rows = self._rows.array[part][self._fingerprints.array[part] > _FREED]
        return rows, self._hashes(self.ids.array.take(rows))

    def _home_of(self, hashes: Array) -> Array:
        """Each id's first group within its partition, uint16."""
        return (hashes >> _BITS_OF_PARTITION).astype(np.uint16) & np.uint16(self._slots // GROUP - 1)

    def _fill(self, partitions: Sequence[int], rows: Array, hashes: Array, keys: Array) -> None:
        """Fills partitions with just these: `keys` (n) uint16 are their groups, numbered through the partitions. In
        order of its group each goes to the first slot that is left."""
        order = np.argsort(keys, kind="stable")
        keys, rows, marks = keys[order].astype(np.int64), rows[order], _fingerprints(hashes)[order]
        groups = self._slots // GROUP
        for number, partition in enumerate(partitions):
            begin = partition * self._slots
            self._fingerprints.array[begin : begin + self._slots] = 0
            self._freed[partition] = 0
            low, high = np.searchsorted(keys, (number * groups, (number + 1) * groups))
            count = np.arange(high - low)
            places = count + np.maximum.accumulate((keys[low:high] - number * groups) * GROUP - count)
            inside = int(np.searchsorted(places, self._slots))
            places = begin + places[:inside]
            self._rows.array[places] = rows[low : low + inside]
            self._fingerprints.array[places] = marks[low : low + inside]
            # What the last groups have no slot for goes on at the first.
            beyond = slice(low + inside, high)
            first = np.full(high - low - inside, begin // GROUP, np.int64)
            self._claim(rows[beyond], first, marks[beyond])


def _next_group(groups: Array, last: int) -> Array:
    """The groups behind these, round each one's partition; `last` is a partition's last one."""
    found: Array = (groups & ~last) | ((groups + 1) & last)
    return found


def _fingerprints(hashes: Array) -> Array:
    """2 to 255 (n) uint8."""
    return np.maximum((hashes >> _FINGERPRINT_SHIFT).astype(np.uint8), _LEAST_FINGERPRINT)


def _zero_bytes(words: Array) -> Array:
    """The high bit of each byte that is 0; above the lowest such byte also of some that are 1."""
    found: Array = words - _ONES
    found &= ~words
    found &= _HIGHS
    return found


def _first_byte(bits: Array) -> Array:
    """The number of the lowest byte whose high bit is set (n) int64; 0 where there is none."""
    lowest = bits & (~bits + _ONE)
    lowest >>= _SEVEN
    lowest *= _PLACES
    lowest >>= _FINGERPRINT_SHIFT
    return lowest.view(np.int64)
