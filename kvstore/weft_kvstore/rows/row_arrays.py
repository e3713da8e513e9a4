"""Values and state of a table by the number of the row: held, brought up to date, and as they are at one moment."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from weft_kernels.blocks import CACHE_ELEMENTS
from weft_kernels.row_copies import put_rows, take_rows
from weft_kernels.rules.hyper_log import HyperLog
from weft_kernels.rules.record import Hyper, Rule
from weft_kernels.rules.replay import CALL_ELEMENTS, replaying
from weft_kernels.rules.rows import apply_to_rows
from weft_kvstore.arrays import Array
from weft_kvstore.rows.growing_array import GrowingArray, TablePlace

# --- A table's values and the rule's state by the number of the row, in memory or in a file ---------------------------


WINDOW_BYTES: Final = 1 << 16
"""So much memory may the use of one row of a file take: Linux maps what lies around it too."""


class RowArrays:
    """The values of rows, under the name None, and the rule's state by its names: arrays of as many rows, zeros until
    they are written. `names` has the name of each array. `at_once`: how many rows one call may use where the arrays are
    in a file, so that they take no more memory than their place allows; None where they are in memory.
    """

    __slots__ = ("_arrays", "_start", "_used", "at_once", "names", "written")

    def __init__(
        self,
        width: int,
        dtype: np.dtype[Any],
        start: Mapping[str, float],
        *,
        capacity: int | None,
        place: TablePlace | None = None,
    ) -> None:
        """`start` has the number that each state begins at. `capacity`: how many rows there will be; None: they grow.
        Raises MemoryError, and OSError where no file can be made at the place."""
        self.at_once: int | None = None
        self._used = 0
        directory = None
        self.names = names = (None, *start)
        row_bytes = width * dtype.itemsize * len(names)
        if place is not None and (capacity is None or capacity * row_bytes > place.memory_bytes):
            directory = place.directory
            self.at_once = max(place.memory_bytes // (row_bytes + len(names) * WINDOW_BYTES), 1)
        self._start = dict(start)
        self._arrays = {name: GrowingArray(width, dtype, rows=capacity, directory=directory) for name in names}
        self.written: Callable[[Array], None] | None = None
        """Called with rows (n) that are here before they are written, where there are captures."""

    def __len__(self) -> int:
        return len(self._arrays[None].array)

    @property
    def width(self) -> int:
        return int(self._arrays[None].array.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._arrays[None].array.dtype

    def to_huge_pages(self) -> Iterator[None]:
        """Brings arrays of fixed size that are in memory into huge pages; stops after some blocks."""
        for one in self._arrays.values() if self.at_once is None else ():
            yield from one.to_huge_pages()

    def reserve(self, rows: int) -> None:
        """Makes room for so many rows. Raises MemoryError."""
        for one in self._arrays.values():
            one.reserve(rows)

    def read(self, name: str | None, rows: Array) -> Array:
        """One array's rows (n, width), copied."""
        array = self._arrays[name].array
        found = np.empty((len(rows), array.shape[1]), array.dtype)
        if self.at_once is None:
            take_rows(array, rows, found)
            return found
        for low in range(0, len(rows), self.at_once):
            some = rows[low : low + self.at_once]
            self._use(some)
            take_rows(array, some, found[low : low + len(some)])
        return found

    def write(self, name: str | None, rows: Array, values: Array) -> None:
        """Sets one array's rows (n), distinct."""
        if self.written is not None:
            self.written(rows)
        self._use(rows)
        put_rows(self._arrays[name].array, rows, values)

    def begin_state(self, rows: Array, *, are_zeros: bool) -> None:
        """These rows are created; `are_zeros`: they were never written."""
        self._use(rows)
        for name, start in self._start.items():
            if start or not are_zeros:
                self._arrays[name].array[rows] = start

    def apply(  # as it is called
        self,
        rule: Rule,
        rows: Array,
        gradient: Array,
        *,
        step: int,
        hyper: Hyper,
        out: Array | None = None,
        skip: Array | None = None,
    ) -> None:
        """Updates rows (n), distinct, except those at the positions `skip`, by a gradient (n, width) that may be
        written. The new values also go to `out` (n, width), where it is given. Raises what the rule raises."""
        if self.written is not None:
            self.written(rows)
        if self.at_once is not None:
            self._use(rows)
        state = {name: self._arrays[name].array for name in self._start} if self._start else {}
        kept: list[tuple[Array, Array, Array]] = []
        if skip is not None:
            those = rows.take(skip)
            kept = [(one.array, those, self.read(name, those)) for name, one in self._arrays.items()]
            if out is not None:
                kept.append((out, skip, kept[0][2]))
        apply_to_rows(rule, self._arrays[None].array, gradient, state, rows, step=step, hyper=hyper, out=out)
        for array, those, values in kept:
            put_rows(array, those, values)

    def close(self) -> None:
        for one in self._arrays.values():
            one.close()

    def _use(self, rows: Array) -> None:
        """To be called before rows are used. Unmaps the rows of a file that were used before, if all together are too
        many."""
        if self.at_once is None:
            return
        if self._used + len(rows) > self.at_once:
            self._used = 0
            for one in self._arrays.values():
                one.unmap()
        self._used += len(rows)


# --- Standard row-sparse semantics of a table: which of its updates each row has seen, and how it gets the others -----
# A row is brought up to date when it is next touched or read (`weft_kernels.rules.replay`), and in the end without
# that: so no row is ever further behind than a number of updates that the table's size decides, what a read costs is
# bounded, and so is what has to be known of past updates. Until then a row that is never met costs nothing.


LEAST_BEHIND: Final = 1 << 3
MOST_BEHIND: Final = 1 << 14
"""A row of the smallest table may be so many updates behind before it is swept, and one of the largest table so many.
To sweep a row costs as much as to update it in a dense key, and a pull of one that is 16,384 updates behind takes some
300 ms."""

BEHIND_ELEMENTS: Final = 8 * CALL_ELEMENTS
"""Of a table, for each update that its rows may be behind. The calls that bring a single row up to date then take about
as long as one update of all rows, so a step that meets such a row costs little more than with a dense key."""

SWEEP_PERIOD: Final = 1 << 10
"""Every row is looked at once in at most so many updates."""

LOG: Final = "table/log"
NUMBERS: Final = "table/numbers"
"""Their names in a snapshot."""


class RowHistory:
    """The log of a table's updates, and for each row the last one that it has seen. What overflows is the user's to see
    in the values: whoever calls this has NumPy say nothing of it.

    A row of a table of fixed size begins before the first update, touched or not, as a dense key does; one of a growing
    table begins when it comes into being.

    Invariants: `seen` of a row is 0 where it is not here, else 1 + the last update that it has seen; what a row that
    comes into being begins at has seen updates up to `_begin`; the log knows every update behind those of any row here.
    """

    __slots__ = ("_begin", "_cursor", "_grows", "_log", "_rule", "_still", "_sweep_began", "seen")

    def __init__(self, rule: Rule, dtype: np.dtype[np.generic], capacity: int | None) -> None:
        """`capacity`: how many rows there will be; None: they grow."""
        self._rule = rule
        self._grows = capacity is None
        self._log = HyperLog(rule.hyper)
        self._begin = 0
        self._cursor = 0
        self._sweep_began = 0
        self.seen = GrowingArray(None, np.int64, rows=capacity)
        # A float16 state that begins beyond its range is brought within it by the first update.
        self._still = dtype != np.float16 or not any(rule.state.values())

    def append(self, hyper: Hyper) -> None:
        """There is one update more, with these numbers; the rows that are here have not seen it yet."""
        stood_still = self._begin == self._log.last and self._leaves_first_values(hyper)
        self._log.append(hyper)
        if self._grows or stood_still:
            self._begin = self._log.last

    def begin(self, rows: Array) -> None:
        """These rows are created."""
        self.seen.array[rows] = 1 + self._begin

    def saw_all(self, rows: Array) -> None:
        """These rows are as they are after the last update."""
        self.seen.array[rows] = 1 + self._log.last

    def marks(self) -> dict[str, Array]:
        """What is known of all rows together: the log, and the update that new rows begin at."""
        log, numbers = self._log.told()
        return {LOG: np.concatenate([[self._begin], log]), NUMBERS: numbers}

    def begin_with(self, marks: Sequence[Mapping[str, Array]]) -> None:
        """Continues from the marks of shards that had parts of the same rows; to be called before any row is here.

        The longest of their logs has all updates that a row may lack. A shard on which all rows exist creates none any
        more, and what it says of rows to come is later; so the earliest that one of them says is right.
        """
        most = min(marks, key=lambda one: int(one[LOG][1]))
        self._log = HyperLog.restored(self._rule.hyper, most[LOG][1:], most[NUMBERS])
        self._begin = min(int(one[LOG][0]) for one in marks)
        self._sweep_began, self._cursor = self._log.last, 0

    def begin_at(self, updates: int) -> None:
        """Continues after so many updates, which all rows that are here have seen."""
        self._log = HyperLog(self._rule.hyper, updates)
        self._begin = self._sweep_began = updates
        self.seen.array[self.seen.array > 0] = 1 + updates

    def work_of(self, rows: Array, width: int) -> int:
        """About how many elements have to be updated, at most, before rows (n) can be read; -1 stands for a row that is
        not here."""
        behind = self._log.last - self._since(rows)
        return int(behind.sum()) * width + CALL_ELEMENTS * int(behind.max(initial=0))

    def catch_up(self, arrays: RowArrays, rows: Array) -> Iterator[None]:
        """Brings rows (n), distinct and all of them here, up to the last update; stops after each piece. Meanwhile
        others may do the same, or set rows: what is up to date already is not written."""
        behind = rows[self._since(rows) < self._log.last]
        order = behind[np.argsort(self.seen.array[behind], kind="stable")]
        cached_rows = max(CACHE_ELEMENTS // max(arrays.width, 1), 1)
        for low in range(0, len(order), cached_rows):
            some = order[low : low + cached_rows]
            since, to = self._since(some), self._log.last
            values = arrays.read(None, some)
            state = {name: arrays.read(name, some) for name in self._rule.state}
            yield from replaying(self._rule, values, state, np.arange(len(some)), since=since, log=self._log)
            left = self._since(some) == since
            arrays.write(None, some[left], values[left])
            for name, array in state.items():
                arrays.write(name, some[left], array[left])
            self.seen.array[some[left]] = 1 + to

    def age(self, values: Array) -> Generator[None, None, dict[str, Array]]:
        """Brings first values (n, width) up to the last update, in place; stops after each piece. Returns the state
        that belongs to them."""
        state = {name: np.full_like(values, start) for name, start in self._rule.state.items()}
        cached_rows = max(CACHE_ELEMENTS // max(values.shape[1], 1), 1)
        for low in range(0, len(values) if self._begin < self._log.last else 0, cached_rows):
            some = np.arange(low, min(low + cached_rows, len(values)))
            since = np.full(len(some), self._begin)
            yield from replaying(self._rule, values, state, some, since=since, log=self._log)
        return state

    def sweep(self, arrays: RowArrays, stop: int, create: Callable[[Array], object] | None = None) -> Iterator[None]:
        """Looks at the rows 0 to `stop` in turn, some after each update, and brings those up to date that are far
        behind; stops after each piece. Forgets updates that every row has seen.

        `create(rows)` creates rows that are not here: they are swept like the others then, where updates change first
        values.
        """
        last = self._log.last
        most = min(MOST_BEHIND, max(LEAST_BEHIND, stop * arrays.width // BEHIND_ELEMENTS))
        period = min(SWEEP_PERIOD, most)
        if last <= most:
            self._sweep_began = last
            return
        # As many rows as fill the cache are looked at together: each update of fewer would cost as many calls.
        cached_rows = max(CACHE_ELEMENTS // max(arrays.width, 1), 1)
        due = min(stop * (last - self._sweep_began) // period, stop)
        if due - self._cursor < cached_rows and due < stop:
            return
        while self._cursor < due:
            low, high = self._cursor, min(self._cursor + cached_rows, due)
            seen = self.seen.array[low:high]
            if create is not None and self._begin < last - most and not seen.all():
                create(low + np.flatnonzero(seen == 0))
            yield from self.catch_up(arrays, low + np.flatnonzero((seen > 0) & (seen < last - most)))
            self._cursor = high
        if due >= stop:
            if create is not None and self._begin < self._sweep_began - most:
                self._begin = last  # All rows are here, and none is to come.
            self._log.forget(min(self._begin, self._sweep_began - most - 1))
            self._sweep_began, self._cursor = last, 0

    def _since(self, rows: Array) -> Array:
        """The last update (n) that these rows have seen; for one that is not here, where it would begin."""
        seen: Array = self.seen.array.take(np.maximum(rows, 0)) if len(self.seen.array) else np.zeros_like(rows)
        return np.where((rows >= 0) & (seen > 0), seen - 1, self._begin)

    def _leaves_first_values(self, hyper: Hyper) -> bool:
        """Whether an update without a gradient changes no bit of a row that was never touched."""
        names = None if self._rule.still is None or not self._still else self._rule.still(hyper)
        return names is not None and not any(self._rule.state[name] for name in names)


# --- The rows of a table as they are at one moment, taken out in groups while they are written ------------------------


GROUP_BYTES: Final = 1 << 22
"""Bytes of a row group, which is taken out at once: some milliseconds' work between two pieces of a merge."""
MOST_GROUPS: Final = 1 << 12
"""A table is in at most so many row groups: a file's header names each, and is read whole."""

LOOKED_AT: Final = 1 << 13
"""At least so many rows are looked through at once for those to be taken out."""

Columns = dict[str, Array]
"""All that is known of some rows: arrays (n, ...), by the names that a snapshot has for them."""


def group_rows(rows: int, row_bytes: int) -> int:
    """The rows of a row group, which is taken out at once, of so many rows with so many bytes each."""
    return max(GROUP_BYTES // max(row_bytes, 1), -(-rows // MOST_GROUPS), 1)


class RowCapture:
    """Rows by their numbers, as they were when it was made. Nothing is copied then: a row that is written before it was
    taken out is copied first (`keep`), and taken out next, so that few copies wait.

    Invariants: `_open` (bool) is set for each row that was neither taken out nor copied; all of them are at `_next` or
    behind it. `left` counts these and those that were copied.
    """

    __slots__ = ("_kept", "_next", "_open", "_read", "left")

    def __init__(self, here: Array, read: Callable[[Array], Columns]) -> None:
        """`here` (bool, taken over): which rows. `read` gives what is known of rows (n) int64."""
        self._open = here
        self._read = read
        self._next = 0
        self._kept: deque[tuple[int, Columns]] = deque()
        self.left = int(np.count_nonzero(here))

    def keep(self, rows: Array) -> None:
        """These rows (n) int64, distinct, are about to change."""
        rows = rows[rows < len(self._open)]
        rows = rows[self._open[rows]]
        if len(rows):
            self._kept.append((len(rows), self._read(rows)))
            self._open[rows] = False

    def take(self, count: int) -> Columns:
        """The next rows, so many or all that are left; those that were copied come first."""
        found: list[Columns] = []
        wanted = count = min(count, self.left)
        while wanted and self._kept:
            there, columns = self._kept.popleft()
            if there > wanted:
                self._kept.appendleft((there - wanted, {name: array[wanted:] for name, array in columns.items()}))
                columns = {name: array[:wanted] for name, array in columns.items()}
            found.append(columns)
            wanted -= min(there, wanted)
        while wanted:
            high = self._next + max(wanted, LOOKED_AT)
            rows = self._next + np.flatnonzero(self._open[self._next : high])[:wanted]
            self._next = int(rows[-1]) + 1 if len(rows) == wanted else high
            if len(rows):
                self._open[rows] = False
                found.append(self._read(rows))
                wanted -= len(rows)
        self.left -= count
        return {name: np.concatenate([one[name] for one in found]) for name in found[0]}


# --- Which rows have changed since a capture before -------------------------------------------------------------------


MOST_BEFORE: Final = 4
"""Captures since which changes are known. The last ones may not be in a file yet, and then an earlier one is named."""


class RowChanges:
    """Notes changes from the first capture on: a table that is never captured costs nothing. `_steps` has the numbers
    of the last captures by their steps, oldest first; `_changed`, by row, how many captures there were when it last
    changed; `_gone` the indices of rows that have gone, with the number of captures at that time."""

    __slots__ = ("_changed", "_gone", "_steps", "_taken")

    def __init__(self) -> None:
        self._taken = 0
        self._steps: dict[int, int] = {}
        self._changed = GrowingArray(None, np.int32)
        self._gone: list[tuple[int, Array]] = []

    def knows(self, step: int | None) -> bool:
        """Whether all changes since the capture at that step are known."""
        return step in self._steps

    def mark(self, rows: Array) -> None:
        """These rows (n) change, or come into being."""
        if self._taken and len(rows):
            self._changed.reserve(int(rows.max()) + 1)
            self._changed.array[rows] = self._taken

    def gone(self, indices: Array) -> None:
        """These rows (n) are not here any more."""
        if self._taken and len(indices):
            self._gone.append((self._taken, indices))

    def captured(self, step: int, since: int | None, here: Array) -> tuple[Array, Array]:
        """There is a capture at `step`. Returns which of the rows that are `here` (bool) it has, and the indices of
        those that have gone: with `since`, a step that `knows` knows, only what has changed since the capture at that
        step. Changes before that are forgotten."""
        found, gone = here.copy(), [np.zeros(0, np.int64)]
        if since is not None:
            first = self._steps[since]
            self._changed.reserve(len(here))
            found &= self._changed.array[: len(here)] >= first
            gone = [indices for number, indices in self._gone if number >= first] or gone
        self._taken += 1
        known = [] if since is None else [one for one in self._steps.items() if one[1] >= self._steps[since]]
        self._steps = dict([*known, (step, self._taken)][-MOST_BEFORE:])
        least = min(self._steps.values())
        self._gone = [one for one in self._gone if one[0] >= least]
        return found, np.unique(np.concatenate(gone))
