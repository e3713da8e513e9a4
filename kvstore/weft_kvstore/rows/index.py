"""Where the row of an id lies: which shard has it, and a hash table over 64-bit ids in NumPy. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from weft_kernels.id_draws import mixed
from weft_kvstore.arrays import Array
from weft_kvstore.rows.growing_array import GrowingArray

# --- Which shard has a row of a growing table: a function of the id and the number of shards alone --------------------


_APART: Final = np.uint64(0x5851F42D4C957F2D)
"""Makes this hash another one than that of a shard's index."""


def shard_of(ids: Array, shards: int) -> Array:
    """The shards (n) int64 of ids (n) uint64, evenly spread whatever the ids are.

    The upper half of the hash, times the number of shards, over 2^32: Lemire, "Fast random integer generation in an
    interval", 2019.
    """
    if shards == 1:
        return np.zeros(len(ids), np.int64)
    hashes = mixed(ids ^ _APART)
    hashes >>= np.uint64(32)
    hashes *= np.uint64(shards)
    hashes >>= np.uint64(32)
    return hashes.view(np.int64)


# --- A group of eight slots is one 64-bit word: a byte for each slot, so that one operation compares all eight --------
# The byte of a used slot is its id's fingerprint, 2 to 255. 0 is a free slot, `FREED` one that was freed in a full
# group. (The layout of Google's "Swiss tables".)


GROUP: Final = 8
FREED: Final = 1

_ONES: Final = np.uint64(0x0101010101010101)
_HIGHS: Final = np.uint64(0x8080808080808080)
_NOT_FREED: Final = np.uint64(0xFEFEFEFEFEFEFEFE)
_BYTE_INDICES: Final = np.uint64(0x0001020304050607)
_ONE: Final = np.uint64(1)


def fingerprints(hashes: Array) -> Array:
    """The upper byte of each hash, 2 to 255 (n) uint8."""
    return np.maximum((hashes >> np.uint64(56)).astype(np.uint8), np.uint8(FREED + 1))


def zero_bytes(words: Array) -> Array:
    """The high bit of each byte that is 0. Above the lowest such byte it may also be set in bytes that are 1."""
    found: Array = words - _ONES
    found &= ~words
    found &= _HIGHS
    return found


def free_bytes(words: Array) -> Array:
    """As `zero_bytes`, of slots without an id: never used, or freed."""
    return zero_bytes(words & _NOT_FREED)


def first_byte(bits: Array) -> Array:
    """The number of the lowest byte whose high bit is set (n) int64; 0 where there is none."""
    lowest = bits & (~bits + _ONE)
    lowest >>= np.uint64(7)
    lowest *= _BYTE_INDICES
    lowest >>= np.uint64(56)
    return lowest.view(np.int64)


# --- Which row has which id: open addressing, in partitions that are split one at a time ------------------------------
# An id lies in the first group, from its own group of its partition on, that had a free slot: a search ends at a group
# with a slot that was never used. When the table is full one partition, the next in turn, is split in two (Litwin,
# "Linear hashing", VLDB 1980): so no growth takes longer than a partition does. A slot takes 5 bytes, and 0.375 to 0.75
# of the slots are used.


PARTITION_SLOTS: Final = 1 << 15
"""Slots of a partition, a power of two."""

MOST_FILLED: Final = 0.75
"""At most this part of a partition's slots is used, and on average half of it: a split halves the ids of a partition.
"""

MOST_FREED: Final = 1 / 16
"""A partition is made anew once this part of its slots was freed: freed slots do not end a search."""

MOST_ROWS: Final = (1 << 32) - 1

SEARCH_ROWS: Final = 1 << 14
"""So many ids are searched at once: the arrays that this takes stay in the cache."""

_PARTITION_BITS: Final = np.uint64(20)
"""The lower bits of a hash, which choose the partition."""


class IdIndex:
    """Rows by id. New ids get the numbers of removed rows, or the next ones. `salt` changes where ids lie and nothing
    else: who does not know it cannot choose ids that collide.

    Invariants: `ids.array[row]` is the id of each row that is here; `stop` is above all their numbers. Every partition
    has a free slot.
    """

    __slots__ = ("_fingerprints", "_free", "_freed", "_last_group", "_rows", "_salt", "count", "ids", "stop")

    def __init__(self, salt: int) -> None:
        self.ids = GrowingArray(None, np.uint64)
        self.count = self.stop = 0
        self._free: Array = np.zeros(0, np.int64)
        self._salt = np.uint64(salt & ((1 << 64) - 1))
        self._last_group = PARTITION_SLOTS // GROUP - 1
        self._freed = np.zeros(1, np.int64)
        self._fingerprints = GrowingArray(None, np.uint8)
        self._rows = GrowingArray(None, np.uint32)
        self._fingerprints.grow(PARTITION_SLOTS)
        self._rows.grow(PARTITION_SLOTS)

    def find(self, ids: Array) -> Array:
        """The rows (n) int64 of ids (n) uint64, -1 where there is none."""
        if len(ids) <= SEARCH_ROWS:
            return self._search(ids)[0]
        return np.concatenate(
            [self._search(ids[low : low + SEARCH_ROWS])[0] for low in range(0, len(ids), SEARCH_ROWS)]
        )

    def find_or_add(self, ids: Array) -> tuple[Array, Array]:
        """The rows (n) int64 of ids (n) uint64, distinct, which get one where they have none; and the positions (m) of
        those. Raises MemoryError."""
        while self.count + len(ids) > len(self._freed) * PARTITION_SLOTS * MOST_FILLED / 2:
            self._split()
        rows, new = [], []
        for low in range(0, max(len(ids), 1), SEARCH_ROWS):
            some = ids[low : low + SEARCH_ROWS]
            found, _, ends, marks = self._search(some)
            (at,) = (found < 0).nonzero()
            if at.size:
                found[at] = numbers = self._numbers(some[at])
                self._claim(numbers.astype(np.uint32), ends[at], marks[at])
            rows.append(found)
            new.append(low + at)
        return (rows[0], new[0]) if len(rows) == 1 else (np.concatenate(rows), np.concatenate(new))

    def remove(self, rows: Array) -> None:
        """Forgets rows (n), distinct and all of them here. `tidy` is to be called some time after it."""
        for low in range(0, len(rows), SEARCH_ROWS):
            slots = self._search(self.ids.array[rows[low : low + SEARCH_ROWS]])[1]
            # A search may have passed a full group: what is freed there must not end it. Looked at before any is freed.
            ends = zero_bytes(self._words[slots // GROUP]) != 0
            self._fingerprints.array[slots] = np.where(ends, 0, FREED)
            np.add.at(self._freed, slots[~ends] // PARTITION_SLOTS, 1)
        self.count -= len(rows)
        self._free = np.concatenate([self._free, rows])

    def tidy(self) -> Iterator[None]:
        """Makes those partitions anew in which too many slots were freed; stops after each."""
        for partition in np.flatnonzero(self._freed > PARTITION_SLOTS * MOST_FREED).tolist():
            self._fill(partition, *self._rows_in(partition))
            yield

    @property
    def _words(self) -> Array:
        return self._fingerprints.array[: len(self._freed) * PARTITION_SLOTS].view(np.uint64)

    def _numbers(self, ids: Array) -> Array:
        """Numbers (n) int64 for new ids (n), freed ones first."""
        again = min(len(ids), len(self._free))
        stop = self.stop + len(ids) - again
        if stop > MOST_ROWS:
            raise MemoryError(f"a shard's part of a table has at most {MOST_ROWS} rows")
        self.ids.reserve(stop)
        numbers = np.concatenate([self._free[len(self._free) - again :], np.arange(self.stop, stop)])
        self.ids.array[numbers] = ids
        self._free, self.stop = self._free[: len(self._free) - again], stop
        self.count += len(ids)
        return numbers

    def _search(self, ids: Array) -> tuple[Array, Array, Array, Array]:
        """For ids (n) the rows (n) int64 and their slots, -1 where there is none; the group (n) int64 at which the
        search ended; the fingerprint (n) uint8."""
        words, hashes = self._words, mixed(ids ^ self._salt)
        marks, groups = fingerprints(hashes), self._groups_of(hashes)
        slots, ends = np.full(len(ids), -1, np.int64), groups.copy()
        left, patterns = np.arange(len(ids)), marks * _ONES
        for _ in range(self._last_group + 1):
            word = words.take(groups)
            self._compare(ids, left, groups, zero_bytes(word ^ patterns), slots)
            (on,) = ((zero_bytes(word) == 0) & (slots.take(left) < 0)).nonzero()
            if not on.size:
                break
            left, patterns = left.take(on), patterns.take(on)
            groups = self._next(groups.take(on))
            ends[left] = groups
        rows = self._rows.array.take(np.maximum(slots, 0)).astype(np.int64)
        rows[slots < 0] = -1
        return rows, slots, ends, marks

    def _compare(self, ids: Array, left: Array, groups: Array, matches: Array, slots: Array) -> None:
        """Of the ids that are `left`, looks at the slots of `groups` whose fingerprints match, one of each group at a
        time; writes `slots` of the ids that are there."""
        (at,) = matches.nonzero()
        while at.size:
            matches, groups, left = matches.take(at), groups.take(at), left.take(at)
            there = groups * GROUP + first_byte(matches)
            same = self.ids.array.take(self._rows.array.take(there)) == ids.take(left)
            slots[left.compress(same)] = there.compress(same)
            matches &= matches - _ONE
            (at,) = ((matches != 0) & ~same).nonzero()

    def _claim(self, rows: Array, groups: Array, marks: Array) -> None:
        """Puts rows (n) uint32 with fingerprints (n), whose ids are not here, into the first free slots from groups (n)
        on. Of two rows that find the same slot one looks again."""
        words = self._words
        while rows.size:
            free = free_bytes(words.take(groups))
            slots, has_free = groups * GROUP + first_byte(free), free != 0
            self._rows.array[slots[has_free]] = rows[has_free]
            won = has_free & (self._rows.array.take(slots) == rows)
            self._fingerprints.array[slots[won]] = marks[won]
            groups = np.where(has_free, groups, self._next(groups))
            rows, groups, marks = rows[~won], groups[~won], marks[~won]

    def _next(self, groups: Array) -> Array:
        """The next groups; behind the last one of a partition comes its first."""
        found: Array = (groups & ~self._last_group) | ((groups + 1) & self._last_group)
        return found

    def _groups_of(self, hashes: Array) -> Array:
        """Each id's first group (n) int64."""
        found = hashes >> _PARTITION_BITS
        found &= np.uint64(self._last_group)
        if len(self._freed) > 1:
            found += self._partition_of(hashes) * np.uint64(self._last_group + 1)
        return found.view(np.int64)

    def _partition_of(self, hashes: Array) -> Array:
        """Linear hashing: one bit more of the hash chooses between the halves of partitions that are split already."""
        partitions = np.uint64(len(self._freed))
        half = np.uint64(1 << ((len(self._freed) - 1).bit_length() - 1))
        found = hashes & (half + half - _ONE)
        found -= half * (found >= partitions)
        return found

    def _split(self) -> None:
        """Splits the next partition: the other half becomes the last one. Raises MemoryError."""
        last = len(self._freed)
        self._fingerprints.reserve((last + 1) * PARTITION_SLOTS)
        self._rows.reserve((last + 1) * PARTITION_SLOTS)
        partition = last - (1 << (last.bit_length() - 1))
        rows, hashes = self._rows_in(partition)
        self._freed = np.append(self._freed, 0)
        leaves = self._partition_of(hashes) == np.uint64(last)
        self._fill(partition, rows[~leaves], hashes[~leaves])
        self._fill(last, rows[leaves], hashes[leaves])

    def _rows_in(self, partition: int) -> tuple[Array, Array]:
        """The rows of a partition, and their ids' hashes."""
        slots = slice(partition * PARTITION_SLOTS, (partition + 1) * PARTITION_SLOTS)
        rows = self._rows.array[slots][self._fingerprints.array[slots] > FREED]
        return rows, mixed(self.ids.array.take(rows) ^ self._salt)

    def _fill(self, partition: int, rows: Array, hashes: Array) -> None:
        """Makes a partition anew: it has just these rows (n) uint32, each in the first slot left from its group on."""
        begin, end = partition * PARTITION_SLOTS, (partition + 1) * PARTITION_SLOTS
        self._fingerprints.array[begin:end] = 0
        self._freed[partition] = 0
        groups = self._groups_of(hashes) - begin // GROUP
        order = np.argsort(groups.astype(np.uint16), kind="stable")
        rows, marks, number = rows[order], fingerprints(hashes)[order], np.arange(len(rows))
        slots = begin + number + np.maximum.accumulate(groups[order] * GROUP - number)
        inside = int(np.searchsorted(slots, end))
        self._rows.array[slots[:inside]] = rows[:inside]
        self._fingerprints.array[slots[:inside]] = marks[:inside]
        # What the last groups have no slot for goes on at the first.
        self._claim(rows[inside:], np.full(len(rows) - inside, begin // GROUP), marks[inside:])
