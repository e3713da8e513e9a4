"""Where the row of an id lies: which shard has it, and a hash table over 64-bit ids in NumPy. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from weft_kernels.id_draws import mixed
from weft_kvstore.arrays import Array
from weft_kvstore.rows.memory import GrowingArray

# --- Which shard has a row of a growing table: a function of the id and the number of shards alone --------------------


_APART: Final = np.uint64(0x5851F42D4C957F2D)
"""Keeps this hash apart from that of a shard's own index."""


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


# --- A group of eight slots as one 64-bit word, a byte of each id's hash for a slot: all are looked at at once --------
# A byte is the slot's fingerprint; 0 is a free slot, `FREED` one that was freed in a full group.


GROUP: Final = 8
FREED: Final = 1

_LEAST_FINGERPRINT: Final = np.uint8(2)
_FINGERPRINT_SHIFT: Final = np.uint64(56)
_ONES: Final = np.uint64(0x0101010101010101)
_HIGHS: Final = np.uint64(0x8080808080808080)
_NOT_FREED: Final = np.uint64(0xFEFEFEFEFEFEFEFE)
_PLACES: Final = np.uint64(0x0001020304050607)
_ONE: Final = np.uint64(1)
_SEVEN: Final = np.uint64(7)


def fingerprints(hashes: Array) -> Array:
    """2 to 255 (n) uint8."""
    return np.maximum((hashes >> _FINGERPRINT_SHIFT).astype(np.uint8), _LEAST_FINGERPRINT)


def eight_times(marks: Array) -> Array:
    """Words (n) all of whose bytes are these fingerprints (n)."""
    found: Array = marks * _ONES
    return found


def zero_bytes(words: Array) -> Array:
    """The high bit of each byte that is 0; above the lowest such byte also of some that are 1."""
    found: Array = words - _ONES
    found &= ~words
    found &= _HIGHS
    return found


def free_bytes(words: Array) -> Array:
    """The same of each slot that has no id: never used, or freed."""
    return zero_bytes(words & _NOT_FREED)


def first_byte(bits: Array) -> Array:
    """The number of the lowest byte whose high bit is set (n) int64; 0 where there is none."""
    lowest = bits & (~bits + _ONE)
    lowest >>= _SEVEN
    lowest *= _PLACES
    lowest >>= _FINGERPRINT_SHIFT
    return lowest.view(np.int64)


# --- The slots of an index of ids: groups of eight, which lie in partitions that are made anew one at a time ----------
# While there is one partition it doubles; a full-sized one is split instead, partition by partition in turn (Litwin,
# "Linear hashing", VLDB 1980). So no more than one partition is ever made anew at once, and a slot costs 5 bytes at a
# fill of 0.375 to 0.75.


LEAST_SLOTS: Final = 1 << 10
MOST_SLOTS: Final = 1 << 16
"""Slots of a partition, at least and at most: some milliseconds to make one anew, and its arrays fit a cache."""

MOST_FILLED: Final = 0.75
"""Of a partition's slots; on the average half of it, since those that are split have half of the others'."""

MOST_FREED: Final = 1 / 16
"""Slots of a partition that may be marked as freed before it is made anew: those do not end a search."""

_BITS_OF_PARTITION: Final = np.uint64(20)


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


# --- Which row has which id: an open-addressing hash table whose loops run over probes, not over ids ------------------
# A group's eight fingerprints are one word, so a probe compares eight slots at once (the layout of Google's "Swiss
# tables"). An id is in the first group, from its own on, that had a free slot: a search ends at a group that has one
# which was never used.


LEAST_IDS: Final = 1 << 10
"""Ids that there is place for at first."""

MOST_ROWS: Final = (1 << 32) - 1

_PIECE: Final = 1 << 14
"""Ids looked for at once: what is made of them stays in the cache."""


class IdIndex:
    """Rows by id. `salt` changes where ids lie and nothing else: who does not know it cannot choose ids that collide.

    Invariant: `ids.array[row]` is the id of each row that is here.
    """

    __slots__ = ("_slots", "count", "ids")

    def __init__(self, salt: int) -> None:
        self.ids = GrowingArray(None, np.uint64)
        self.count = 0
        self._slots = IdSlots(self.ids, salt)

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
