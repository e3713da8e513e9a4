"""The slots of an index of ids: groups of eight, which lie in partitions that are made anew one at a time. Pure.

While there is one partition it doubles; a full-sized one is split instead, partition by partition in turn (Litwin,
"Linear hashing", VLDB 1980). So no more than one partition is ever made anew at once, and a slot costs 5 bytes at a
fill of 0.375 to 0.75.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from weft_kernels.id_draws import mixed
from weft_kvstore.arrays.array import Array
from weft_kvstore.tables.group_words import FREED, GROUP, fingerprints, first_byte, free_bytes, zero_bytes
from weft_kvstore.tables.growing_array import GrowingArray

LEAST_SLOTS: Final = 1 << 10
MOST_SLOTS: Final = 1 << 16
"""Slots of a partition, at least and at most: some milliseconds to make one anew, and its arrays fit a cache."""

MOST_FILLED: Final = 0.75
"""Of a partition's slots; on the average half of it, since those that are split have half of the others'."""

MOST_FREED: Final = 1 / 16
"""Slots of a partition that may be marked as freed before it is made anew: those do not end a search."""

_BITS_OF_PARTITION: Final = np.uint64(20)
_ONE: Final = np.uint64(1)


class IdSlots:
    """A slot has a row, and the fingerprint of its id; `ids.array[row]` is that id, which its owner writes. `salt`
    changes where ids lie.

    Invariants: a partition has `a_partition` slots, at most `MOST_FILLED` of them used on the average of those of its
    age, and at least one free; `last_group` is the number of its last group.
    """

    __slots__ = ("_freed", "_ids", "_salt", "a_partition", "fingerprints", "last_group", "partitions", "rows")

    def __init__(self, ids: GrowingArray, salt: int) -> None:
        self._ids = ids
        self._salt = np.uint64(salt & ((1 << 64) - 1))
        self.a_partition = LEAST_SLOTS
        self.last_group = LEAST_SLOTS // GROUP - 1
        self.partitions = 1
        self._freed = np.zeros(1, np.int64)
        self.fingerprints = GrowingArray(None, np.uint8)
        self.rows = GrowingArray(None, np.uint32)
        self.fingerprints.grow(self.a_partition)
        self.rows.grow(self.a_partition)

    def __len__(self) -> int:
        return self.partitions * self.a_partition

    def hashes(self, ids: Array) -> Array:
        """(n) uint64 of ids (n)."""
        return mixed(ids ^ self._salt)

    def groups_of(self, hashes: Array) -> Array:
        """Each id's first group (n) int64."""
        groups = np.uint64(self.a_partition // GROUP)
        found = hashes >> _BITS_OF_PARTITION
        found &= groups - _ONE
        if self.partitions > 1:
            found += self._partition_of(hashes) * groups
        return found.view(np.int64)

    def claim(self, rows: Array, groups: Array, marks: Array) -> None:
        """Puts rows (n) uint32 with fingerprints (n), whose ids are not here, into the first free slots from groups (n)
        on, which it writes; of two that find the same one, the other looks again."""
        words, last, some_freed = self.fingerprints.array.view(np.uint64), self.last_group, self._freed.any()
        while rows.size:
            free = free_bytes(words.take(groups))
            places = groups * GROUP + first_byte(free)
            full = np.flatnonzero(free == 0)
            if full.size:
                groups[full] = next_group(groups[full], last)
                won = free != 0
                self.rows.array[places[won]] = rows[won]
                won &= self.rows.array.take(places) == rows
            else:
                self.rows.array[places] = rows
                won = self.rows.array.take(places) == rows
            taken = places[won]
            if some_freed:
                freed = self.fingerprints.array[taken] == FREED
                np.subtract.at(self._freed, taken[freed] // self.a_partition, 1)
            self.fingerprints.array[taken] = marks[won]
            on = np.flatnonzero(~won)
            rows, groups, marks = rows[on], groups[on], marks[on]

    def free(self, slots: Array) -> None:
        """Gives up slots (n), distinct and all of them used."""
        words = self.fingerprints.array.view(np.uint64)[slots // GROUP]
        ends = zero_bytes(words) != 0  # before any of these goes: a search may have passed a full group
        self.fingerprints.array[slots] = np.where(ends, 0, FREED)
        np.add.at(self._freed, slots[~ends] // self.a_partition, 1)

    def tidy(self) -> Iterator[None]:
        """Makes partitions anew in which too many slots are marked as freed; stops after each."""
        for partition in np.flatnonzero(self._freed > self.a_partition * MOST_FREED):
            self._remake(int(partition), split=False)
            yield

    def make_place(self, wanted: int) -> None:
        """Doubles the one partition, or splits as many in turn as so many ids need. Raises MemoryError."""
        while self.partitions == 1 and wanted > self.a_partition * MOST_FILLED and self.a_partition < MOST_SLOTS:
            self._double()
        if self.partitions == 1 and wanted <= self.a_partition * MOST_FILLED:
            return
        while wanted > self.partitions * self.a_partition * MOST_FILLED / 2:
            level = self.partitions.bit_length() - 1
            total = self.partitions + 1
            self._enlarge(total * self.a_partition)
            self._freed = np.append(self._freed, 0)
            self.partitions = total
            self._remake(total - 1 - (1 << level), split=True)

    def _partition_of(self, hashes: Array) -> Array:
        """Linear hashing, of two partitions or more: one bit more of the hash names those that are split already."""
        level = self.partitions.bit_length()
        found = hashes & np.uint64((1 << level) - 1)
        if self.partitions & (self.partitions - 1):
            beyond = (found >= np.uint64(self.partitions)).view(np.uint8).astype(np.uint64)
            beyond <<= np.uint64(level - 1)  # The bit that those have in common.
            found ^= beyond
        else:
            found &= np.uint64(self.partitions - 1)
        return found

    def _double(self) -> None:
        rows, hashes = self._kept(0)
        self._enlarge(2 * self.a_partition)
        self.a_partition *= 2
        self.last_group = self.a_partition // GROUP - 1
        self._fill((0,), rows, hashes, self._home_of(hashes))

    def _enlarge(self, slots: int) -> None:
        """Place for so many slots, and for the next few partitions: what is not written takes no memory."""
        if slots > len(self.rows):
            slots += slots // 4 // MOST_SLOTS * MOST_SLOTS
            self.fingerprints.grow(slots)
            self.rows.grow(slots)

    def _remake(self, partition: int, *, split: bool) -> None:
        """Makes a partition anew, or two of it: the other is the last."""
        rows, hashes = self._kept(partition)
        order = self._home_of(hashes)
        if not split:
            self._fill((partition,), rows, hashes, order)
            return
        level = np.uint64(self.partitions.bit_length() - 1 - ((self.partitions & (self.partitions - 1)) == 0))
        moves = (hashes >> level).astype(np.uint16) & np.uint16(1)
        order |= moves * np.uint16(self.a_partition // GROUP)
        self._fill((partition, self.partitions - 1), rows, hashes, order)

    def _kept(self, partition: int) -> tuple[Array, Array]:
        """The rows of a partition, and their ids' hashes."""
        part = slice(partition * self.a_partition, (partition + 1) * self.a_partition)
        rows = self.rows.array[part][self.fingerprints.array[part] > FREED]
        return rows, self.hashes(self._ids.array.take(rows))

    def _home_of(self, hashes: Array) -> Array:
        """Each id's first group within its partition, uint16."""
        return (hashes >> _BITS_OF_PARTITION).astype(np.uint16) & np.uint16(self.last_group)

    def _fill(self, partitions: Sequence[int], rows: Array, hashes: Array, keys: Array) -> None:
        """Fills partitions with just these: `keys` (n) uint16 are their groups, numbered through the partitions. In
        order of its group each goes to the first slot that is left."""
        order = np.argsort(keys, kind="stable")
        keys, rows, marks = keys[order].astype(np.int64), rows[order], fingerprints(hashes)[order]
        groups = self.a_partition // GROUP
        for number, partition in enumerate(partitions):
            begin = partition * self.a_partition
            self.fingerprints.array[begin : begin + self.a_partition] = 0
            self._freed[partition] = 0
            low, high = np.searchsorted(keys, (number * groups, (number + 1) * groups))
            count = np.arange(high - low)
            places = count + np.maximum.accumulate((keys[low:high] - number * groups) * GROUP - count)
            inside = int(np.searchsorted(places, self.a_partition))
            places = begin + places[:inside]
            self.rows.array[places] = rows[low : low + inside]
            self.fingerprints.array[places] = marks[low : low + inside]
            # What the last groups have no slot for goes on at the first.
            beyond = slice(low + inside, high)
            first = np.full(high - low - inside, begin // GROUP, np.int64)
            self.claim(rows[beyond], first, marks[beyond])


def next_group(groups: Array, last: int) -> Array:
    """The groups behind these, round each one's partition; `last` is a partition's last one."""
    found: Array = (groups & ~last) | ((groups + 1) & last)
    return found
