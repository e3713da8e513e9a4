"""Values and state of a table by the number of the row: held, brought up to date, and as they are at one moment."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from weft_kernels.blocks import CACHE_ELEMENTS
from weft_kernels.row_copies import put_rows, taken_rows
from weft_kernels.rules.hyper_log import HyperLog
from weft_kernels.rules.record import Hyper, Rule
from weft_kernels.rules.replay import CALL_ELEMENTS, replaying
from weft_kernels.rules.rows import apply_to_rows
from weft_kvstore.arrays import Array, zeros_on_demand
from weft_kvstore.rows.memory import DiskArray, GrowingArray, TablePlace

# --- A table's values and the rule's state by the number of the row, in memory or on disk -----------------------------


LEAST_ROWS: Final = 1 << 10


class FixedArray:
    """As many rows as there ever are, in memory, of which only those that are written take some."""

    def __init__(self, rows: int, width: int, dtype: np.dtype[Any]) -> None:
        """Raises MemoryError where not even the addresses are to be had."""
        self.array = zeros_on_demand((rows, width), dtype)

    def grow(self, rows: int) -> None:
        assert rows <= len(self.array)


class RowArrays:
    """The values of rows, under the name None, and the rule's state by its names: arrays of as many rows, zeros until
    they are written.

    `capacity`: how many rows there will be; None: they grow.
    """

    __slots__ = ("_arrays", "_on_disk", "_start", "written")

    def __init__(
        self,
        width: int,
        dtype: np.dtype[Any],
        start: Mapping[str, float],
        *,
        capacity: int | None,
        place: TablePlace | None = None,
    ) -> None:
        """`start` has the number that each state begins at. Raises MemoryError, and OSError where the place is none."""
        arrays = 1 + len(start)
        large = capacity is None or capacity * width * dtype.itemsize * arrays > (place.memory_bytes if place else 0)
        self._on_disk: list[DiskArray] = []

        def make() -> FixedArray | GrowingArray | DiskArray:
            if place is not None and large:
                one = DiskArray(place.directory, place.memory_bytes // arrays, width, dtype)
                one.grow(capacity or 0)
                self._on_disk.append(one)
                return one
            return GrowingArray(width, dtype) if capacity is None else FixedArray(capacity, width, dtype)

        self._start = dict(start)
        self._arrays = {name: make() for name in (None, *start)}
        self.written: Callable[[Array], None] | None = None
        """Told rows (n) before they are written, where somebody asks; those that come into being it is not."""

    def __len__(self) -> int:
        return len(self._arrays[None].array)

    @property
    def width(self) -> int:
        return int(self._arrays[None].array.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._arrays[None].array.dtype

    @property
    def names(self) -> tuple[str, ...]:
        """Of the state."""
        return tuple(self._start)

    @property
    def mapped(self) -> list[Array]:
        """All arrays, where they are in memory and of one size for good."""
        return [one.array for one in self._arrays.values() if isinstance(one, FixedArray)]

    def grow(self, rows: int) -> None:
        """Makes place for so many rows. Raises MemoryError."""
        if rows > len(self):
            for one in self._arrays.values():
                one.grow(max(rows, len(self) * 3 // 2 if not self._on_disk else len(self) * 9 // 8, LEAST_ROWS))

    def read(self, name: str | None, rows: Array) -> Array:
        """One array's rows (n, width), copied."""
        one = self._arrays[name]
        if not isinstance(one, DiskArray):
            return taken_rows(one.array, rows)
        found = np.empty((len(rows), self.width), one.dtype)
        begin = 0
        for some in one.pieces(rows):
            one.array.take(some, axis=0, out=found[begin : begin + len(some)], mode="clip")
            begin += len(some)
        return found

    def write(self, name: str | None, rows: Array, values: Array) -> None:
        """Sets one array's rows (n), distinct."""
        if self.written is not None:
            self.written(rows)
        begin = 0
        for some in self._pieces(rows):
            array, part, adjacent = self._arrays[name].array, values[begin : begin + len(some)], _adjacent(some)
            if adjacent is None:
                put_rows(array, some, part)
            else:
                array[adjacent] = part
            begin += len(some)

    def begin_state(self, rows: Array, *, again: int) -> None:
        """Rows begin anew, of which the first `again` were used before; the others' arrays are zeros."""
        for name, start in self._start.items():
            for some in self._pieces(rows if start else rows[:again]):
                self._arrays[name].array[some] = start

    def apply(self, rule: Rule, rows: Array, gradient: Array, *, step: int, hyper: Hyper) -> None:
        """Updates rows (n), distinct, by a gradient (n, width) that may be written. Raises what the rule raises."""
        if self.written is not None:
            self.written(rows)
        begin, weight = 0, self._arrays[None]
        for some in self._on_all_disks(rows) if self._on_disk else (rows,):
            part = gradient[begin : begin + len(some)]
            state = {name: self._arrays[name].array for name in self._start} if self._start else {}
            apply_to_rows(rule, weight.array, part, state, some, step=step, hyper=hyper)
            begin += len(some)

    def close(self) -> None:
        for one in self._on_disk:
            one.close()

    def _pieces(self, rows: Array) -> Iterator[Array]:
        """Parts of rows, small enough for what of the disk may be in memory; all arrays have rows of one size."""
        if not self._on_disk:
            return iter((rows,))
        return self._on_all_disks(rows)

    def _on_all_disks(self, rows: Array) -> Iterator[Array]:
        first, *others = self._on_disk
        for some in first.pieces(rows):
            for other in others:
                for _ in other.pieces(some):
                    pass
            yield some


def _adjacent(rows: Array) -> slice | None:
    """The rows as a slice where they are one behind the other: what is new is. None where they are not."""
    if len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1 and bool((rows[1:] > rows[:-1]).all()):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return None


# --- Standard row-sparse semantics of a table: which of its updates each row has seen, and how it gets the others -----
# A row is brought up to date when it is next touched or read (`weft_kernels.rules.replay`), and in the end without
# that: so no row is ever further behind than a number of updates that the table's size decides, what a read costs is
# bounded, and so is what has to be known of past updates. Until then a row that is never met costs nothing.


LEAST_BEHIND: Final = 1 << 3
MOST_BEHIND: Final = 1 << 14
"""Updates that a row of the smallest, and of the largest, table may be behind before it is swept. What is swept costs
as much as in a dense key, and a pull of a row that is 16,384 updates behind takes some 300 ms."""

BEHIND_ELEMENTS: Final = 8 * CALL_ELEMENTS
"""Of a table, for each update that its rows may be behind. The calls that bring a single row up to date then take about
as long as one update of all rows, so a step that meets such a row costs little more than with a dense key."""

SWEEP_TURN: Final = 1 << 10
"""Updates in which every row is looked at once, at most."""

_OVER: Final = object()


LOG: Final = "table/log"
NUMBERS: Final = "table/numbers"
"""Their names in a snapshot."""


class RowHistory:
    """The log of a table's updates, and for each row the last one that it has seen.

    A row of a table of fixed size begins before the first update, touched or not, as a dense key does; one of a growing
    table begins when it comes into being.

    Invariants: `_seen` of a row is 0 where it is not here, else 1 + the last update that it has seen; what a row that
    comes into being begins at has seen updates up to `_begin`; the log knows every update behind those of any row here.
    """

    __slots__ = ("_begin", "_cursor", "_grows", "_log", "_rule", "_seen", "_still", "_turn")

    def __init__(self, rule: Rule, dtype: np.dtype[np.generic], capacity: int | None) -> None:
        """`capacity`: how many rows there will be; None: they grow."""
        self._rule = rule
        self._grows = capacity is None
        self._log = HyperLog(rule.hyper)
        self._begin = 0
        self._cursor = 0
        self._turn = 0
        self._seen = GrowingArray(None, np.int64)
        if capacity is not None:
            self._seen.array = zeros_on_demand((capacity,), np.dtype(np.int64))
        # A float16 state that begins beyond its range is brought within it by the first update.
        self._still = dtype != np.float16 or not any(rule.state.values())

    def grow(self, rows: int) -> None:
        """Makes place for so many rows. Raises MemoryError."""
        self._seen.grow(rows)

    def append(self, hyper: Hyper) -> int:
        """One update more, with these numbers, which rows here have not seen yet; which number it has."""
        stood_still = self._begin == self._log.last and self._leaves_first_values(hyper)
        self._log.append(hyper)
        if self._grows or stood_still:
            self._begin = self._log.last
        return self._log.last

    def begin(self, rows: Array) -> None:
        """These rows come into being."""
        self._seen.array[rows] = 1 + self._begin

    def saw_all(self, rows: Array) -> None:
        """These rows are as they are after the last update."""
        self._seen.array[rows] = 1 + self._log.last

    def gone(self, rows: Array) -> None:
        """These rows are not here any more."""
        self._seen.array[rows] = 0

    def seen(self, rows: Array) -> Array:
        """What is known of rows (n), all of them here: (n) int64, to be given to `restore`."""
        return self._seen.array.take(rows)

    def restore(self, rows: Array, seen: Array) -> None:
        """These rows, all of them here, are as far as `seen` says."""
        self._seen.array[rows] = seen

    def marks(self) -> dict[str, Array]:
        """What is known of all rows together: the log, and what rows begin at."""
        log, numbers = self._log.told()
        return {LOG: np.concatenate([[self._begin], log]), NUMBERS: numbers}

    def begin_with(self, marks: Sequence[Mapping[str, Array]]) -> None:
        """Goes on where others were that had parts of the same rows: before any is here.

        The log of the one that knew most has all updates. Where all rows were here nothing begins any more, so the
        least that was told is right of the others.
        """
        most = min(marks, key=lambda one: int(one[LOG][1]))
        self._log = HyperLog.restored(self._rule.hyper, most[LOG][1:], most[NUMBERS])
        self._begin = min(int(one[LOG][0]) for one in marks)
        self._turn, self._cursor = self._log.last, 0

    def work_of(self, rows: Array, width: int) -> int:
        """Elements that have to be updated, at most and about, before rows (n) of any kind can be read; -1 stands for
        one that is not here."""
        behind = self._log.last - self._since(rows)
        return int(behind.sum()) * width + CALL_ELEMENTS * int(behind.max(initial=0))

    def catching_up(self, arrays: RowArrays, rows: Array) -> Iterator[None]:
        """Brings rows (n), distinct and all of them here, up to the last update; stops after each piece. Meanwhile
        others may do the same, or set rows: what is up to date already is not written."""
        behind = rows[self._since(rows) < self._log.last]
        order = behind[np.argsort(self._seen.array[behind], kind="stable")]
        a_block = max(CACHE_ELEMENTS // max(arrays.width, 1), 1)
        for low in range(0, len(order), a_block):
            some = order[low : low + a_block]
            since, to = self._since(some), self._log.last
            values = arrays.read(None, some)
            state = {name: arrays.read(name, some) for name in self._rule.state}
            yield from self._replaying(values, state, since)
            left = self._since(some) == since
            arrays.write(None, some[left], values[left])
            for name, array in state.items():
                arrays.write(name, some[left], array[left])
            self._seen.array[some[left]] = 1 + to

    def aging(self, values: Array) -> Generator[None, None, dict[str, Array]]:
        """Brings first values (n, width) up to the last update, in place; stops after each piece. Returns the state
        that belongs to them."""
        with np.errstate(all="ignore"):
            state = {name: np.full_like(values, start) for name, start in self._rule.state.items()}
        a_block = max(CACHE_ELEMENTS // max(values.shape[1], 1), 1)
        for low in range(0, len(values) if self._begin < self._log.last else 0, a_block):
            part = values[low : low + a_block]
            states = {name: array[low : low + a_block] for name, array in state.items()}
            yield from self._replaying(part, states, np.full(len(part), self._begin))
        return state

    def sweeping(self, arrays: RowArrays, stop: int, bring: Callable[[Array], object] | None = None) -> Iterator[None]:
        """Looks at the rows 0 to `stop` in turn, some after each update, and brings those up to date that are far
        behind; stops after each piece. Forgets updates that every row has seen.

        `bring(rows)` makes rows that are not here come into being: they are swept like the others then, where updates
        change first values.
        """
        last = self._log.last
        most = min(MOST_BEHIND, max(LEAST_BEHIND, stop * arrays.width // BEHIND_ELEMENTS))
        turn = min(SWEEP_TURN, most)
        if last <= most:
            self._turn = last
            return
        # As many rows as fill the cache are looked at together: each update of fewer would cost as many calls.
        a_block = max(CACHE_ELEMENTS // max(arrays.width, 1), 1)
        due = min(stop * (last - self._turn) // turn, stop)
        if due - self._cursor < a_block and due < stop:
            return
        while self._cursor < due:
            low, high = self._cursor, min(self._cursor + a_block, due)
            seen = self._seen.array[low:high]
            if bring is not None and self._begin < last - most and not seen.all():
                bring(low + np.flatnonzero(seen == 0))
            yield from self.catching_up(arrays, low + np.flatnonzero((seen > 0) & (seen < last - most)))
            self._cursor = high
        if due >= stop:
            if bring is not None and self._begin < self._turn - most:
                self._begin = last  # All rows are here, and none is to come.
            self._log.forget(min(self._begin, self._turn - most - 1))
            self._turn, self._cursor = last, 0

    def _since(self, rows: Array) -> Array:
        """The last update (n) that rows have seen; what one that is not here would begin with."""
        seen: Array = self._seen.array.take(np.maximum(rows, 0)) if len(self._seen.array) else np.zeros_like(rows)
        return np.where((rows >= 0) & (seen > 0), seen - 1, self._begin)

    def _replaying(self, values: Array, state: Mapping[str, Array], since: Array) -> Iterator[None]:
        """Runs the rule on rows of these arrays, which nobody else has."""
        steps = replaying(self._rule, values, state, np.arange(len(values)), since=since, log=self._log)
        while True:
            with np.errstate(all="ignore"):  # Never held over a yield: it would be the caller's.
                if next(steps, _OVER) is _OVER:
                    return
            yield

    def _leaves_first_values(self, hyper: Hyper) -> bool:
        """Whether an update without a gradient changes no bit of a row that was never touched."""
        names = None if self._rule.still is None or not self._still else self._rule.still(hyper)
        return names is not None and not any(self._rule.state[name] for name in names)


# --- The rows of a table as they are at one moment, taken out block by block while they are written -------------------


BLOCK_BYTES: Final = 1 << 22
"""Of rows that are taken out at once: some milliseconds' work between two pieces of a merge."""
MOST_BLOCKS: Final = 1 << 12
"""Of one table: each is named in the head of a file, which is read whole."""

Columns = dict[str, Array]
"""All that is known of some rows: arrays (n, ...), by the names that a snapshot has for them."""


def a_block(rows: int, row_bytes: int) -> int:
    """How many of so many rows, of so many bytes each, are taken out at once."""
    return max(BLOCK_BYTES // max(row_bytes, 1), -(-rows // MOST_BLOCKS), 1)


_COUNT: Final = np.array([byte.bit_count() for byte in range(256)], np.uint8)


class RowCapture:
    """Rows by their numbers. Nothing is copied when it is made. What is written before it was taken out is copied first
    (`keep`), and is what is taken out next: so little waits.

    Invariant: a bit of `_open` is set for each row that was neither taken out nor copied; all of them are at `_next` or
    behind it. `left` counts these and those that were copied.
    """

    __slots__ = ("_kept", "_next", "_open", "_read", "_stop", "left")

    def __init__(self, here: Array, read: Callable[[Array], Columns], changed: Array | None = None) -> None:
        """`here` (stop) bool: which rows there are; of these only the `changed`, as bits, where that is not None.
        `read` gives what is known of rows (n) int64."""
        self._open = np.packbits(here, bitorder="little")
        if changed is not None:
            self._open[: len(changed)] &= changed[: len(self._open)]
            self._open[len(changed) :] = 0
        self._stop = len(here)
        self._read = read
        self._next = 0
        self._kept: deque[tuple[int, Columns]] = deque()
        self.left = int(_COUNT[self._open].sum(dtype=np.int64))

    def keep(self, rows: Array) -> None:
        """These rows (n) int64, distinct, are about to change."""
        rows = rows[(rows >= self._next) & (rows < self._stop)]
        rows = rows[self._open[rows >> 3] & _bits(rows) > 0]
        if len(rows):
            self._kept.append((len(rows), self._read(rows)))
            np.bitwise_and.at(self._open, rows >> 3, ~_bits(rows))

    def take(self, count: int) -> Columns:
        """The next rows, so many or all that are left: those that were copied first."""
        parts: list[Columns] = []
        wanted = count = min(count, self.left)
        while wanted and self._kept:
            there, columns = self._kept.popleft()
            if there > wanted:
                self._kept.appendleft((there - wanted, {name: array[wanted:] for name, array in columns.items()}))
                columns = {name: array[:wanted] for name, array in columns.items()}
            parts.append(columns)
            wanted -= min(there, wanted)
        while wanted:
            rows = self._following(wanted)
            if len(rows):
                parts.append(self._read(rows))
                wanted -= len(rows)
        self.left -= count
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _following(self, most: int) -> Array:
        """Some of the next open rows, which are open no more."""
        low = self._next >> 3
        high = min(low + max(most >> 3, 1 << 10), len(self._open))
        bits = np.unpackbits(self._open[low:high], bitorder="little")
        rows: Array = 8 * low + np.flatnonzero(bits)
        rows = rows[rows >= self._next][:most]
        self._next = int(rows[-1]) + 1 if len(rows) == most else 8 * high
        return rows


# --- Which rows have changed since a capture before -------------------------------------------------------------------


MOST_BEFORE: Final = 4
"""Captures since which changes are known: what became of one is told with the next but one."""


class RowChanges:
    """Begins with the first capture: what never is captured costs nothing. `_parts[i]` has what changed between the
    capture at step `_steps[i]` and the one behind it: rows by their numbers, as bits, and the places of those that have
    gone."""

    __slots__ = ("_parts", "_steps")

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._parts: list[tuple[GrowingArray, list[Array]]] = []

    def knows(self, step: int | None) -> bool:
        """Whether all changes since the capture at that step are known."""
        return step in self._steps

    def mark(self, rows: Array) -> None:
        """These rows (n) change, or come into being."""
        if self._parts and len(rows):
            bits, least = self._parts[-1][0], (int(rows.max()) >> 3) + 1
            if least > len(bits):
                bits.grow(max(least, len(bits) * 3 // 2))
            np.bitwise_or.at(bits.array, rows >> 3, _bits(rows))

    def gone(self, places: Array) -> None:
        """These rows (n) are not here any more."""
        if self._parts and len(places):
            self._parts[-1][1].append(places)

    def captured(self, step: int, since: int | None) -> tuple[Array, Array] | None:
        """A capture at `step`: what has changed since that at `since`, which `knows` knows: rows as bits, and places of
        those that have gone; None for a capture of all. What was known of the time before that is forgotten."""
        first = len(self._steps) if since is None else self._steps.index(since)
        del self._steps[:first]
        del self._parts[:first]
        found = None
        if self._parts:
            bits: Array = np.zeros(max(len(some) for some, _ in self._parts), np.uint8)
            for some, _ in self._parts:
                bits[: len(some)] |= some.array
            gone = [places for _, some in self._parts for places in some]
            found = bits, np.unique(np.concatenate(gone)) if gone else np.zeros(0, np.int64)
        self._steps = [*self._steps, step][-MOST_BEFORE:]
        self._parts = [*self._parts, (GrowingArray(None, np.uint8), [])][-MOST_BEFORE:]
        return found


def _bits(rows: Array) -> Array:
    """The bit of each row (n) uint8 in its byte."""
    found: Array = np.left_shift(np.uint8(1), (rows & 7).astype(np.uint8))
    return found
