"""What a shard holds of a job at one version: captured while training goes on, and brought back. Pure.

A slice is captured when it reaches the version, or at once where it is there. Nothing is copied: its bytes are pinned,
as those of an answer are, so who writes the slice next writes a copy. A table's rows are taken out block by block as
the file is written; what is written before that is copied first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from weft_kvstore.arrays import Array, Segment, ranges_where
from weft_kvstore.bucket.bucket import PlainBucket
from weft_kvstore.compression.slices import residual_array
from weft_kvstore.errors import StoreError
from weft_kvstore.futures import OtherThread
from weft_kvstore.rows.arrays import Columns, RowCapture, a_block
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.snapshot_files import (
    GONE,
    ROWS,
    UPDATES,
    VALUE,
    Part,
    Snapshot,
    SnapshotError,
    SnapshotReader,
    check_place,
    write_file,
)
from weft_kvstore.step_outcome import LossScale, loss_scale_of
from weft_kvstore.tables.state import TableState
from weft_kvstore.wire.outbox import Pin

OWED: Final = residual_array(None)


class MissedError(Exception):
    """The version has passed; the message names a key and the version that it is at."""


class _Captured(NamedTuple):
    """Slices `first` and on: views of their elements by array, one for each block, and the updates made of each."""

    first: int
    views: dict[str, list[Array]]
    updates: Array


class Capture:
    """What `shard` holds at version `step`, `without` some keys. `complete` is called once all slices are there; raises
    MissedError where a slice is beyond it. To be made, and released, where nothing is merged meanwhile.

    `since`: of tables only what has changed since the capture at that step, where all of them know it; else None."""

    def __init__(
        self,
        shard: JobShard,
        step: int,
        complete: Callable[[Capture], None],
        *,
        without: Collection[str] = (),
        since: int | None = None,
    ) -> None:
        knows = bool(shard.tables) and all(unit.rows.changes.knows(since) for unit in shard.tables.values())
        self.since = since if knows else None
        self.step = step
        self._shard = shard
        self._without = without
        self._complete = complete
        self.loss_scale: LossScale | None = None
        """That of step `step`, where steps are committed; once complete."""
        self._taken: dict[int, list[_Captured]] = {}
        self._pins: list[tuple[Pin, int]] = []
        self._tables: dict[int, TableCapture] = {}
        self._left = sum(len(bucket.state) for bucket in shard.buckets.values()) + len(shard.tables)
        for unit in shard.tables.values():
            if unit.passed_version(step):
                raise MissedError(f"key {unit.spec.key!r} is at version {unit.version} already, or changes")
        for bucket in shard.buckets.values():
            state = bucket.state
            beyond = state.steps.version > step
            if state.spec.slots and beyond.any():
                at = int(beyond.argmax())
                raise MissedError(f"{state.spec.key_named(at)} is at version {state.steps.version[at]} already")
        for number, bucket in shard.buckets.items():
            bucket.state.reached = self._reached(number, bucket)
            there = bucket.state.steps.version == step if bucket.state.spec.slots else np.ones(len(bucket.state), bool)
            for first, stop in ranges_where(there, 0):
                self._take(number, bucket, first, stop)
        for number, unit in shard.tables.items():
            if unit.is_quiet_at(step):
                self._take_table(number, unit)
            else:
                unit.reached = partial(self._table_reached, number, unit)
        if not self._left:
            self._end_complete()

    @property
    def is_complete(self) -> bool:
        """Whether all slices are there."""
        return not self._left

    def parts(self, there: OtherThread) -> list[Part]:
        """All that was captured, once complete. May be read on any thread but the one that merges, until it is
        released; what can only be had `there` is."""
        found: list[Part] = []
        for number, bucket in self._shard.buckets.items():
            captured = sorted(self._taken.get(number, []), key=lambda one: one.first)
            for span in spans_of(self._shard, bucket):
                if span.key in self._without:
                    continue
                owed = (OWED,) if bucket.state.update.has_residual else ()
                for array in (VALUE, *bucket.state.spec.state, *owed):
                    pieces = list(_cut(bucket, captured, array, span))
                    count = sum(len(piece) for piece in pieces)
                    found.append(Part(array, span.key, span.start, count, str(pieces[0].dtype), pieces))
                updates = np.concatenate([one.updates for one in captured])[span.first : span.stop]
                found.append(Part(UPDATES, span.key, span.number, len(updates), "int64", [updates]))
        for number, table in self._tables.items():
            found += _table_parts(self._shard.tables[number], table, there)
        return found

    def held(self, there: OtherThread) -> Held:
        """The same for who writes it."""
        return Held(lambda: self.parts(there), self.loss_scale, lambda: there.soon(self.release), self.since)

    def release(self) -> None:
        """Gives everything back, complete or not."""
        self._end()
        for number, table in self._tables.items():
            self._shard.tables[number].rows.release(table.rows)
        self._tables.clear()
        for pin, count in self._pins:
            pin.give_back(0, count)
        self._pins.clear()
        self._taken.clear()

    def _end_complete(self) -> None:
        """No slice holds step `step` yet, so nobody has agreed on it: the loss scale is that step's."""
        if self._shard.gate is not None:
            self.loss_scale = self._shard.gate.loss_scale
        self._end()
        self._complete(self)

    def _end(self) -> None:
        for bucket in self._shard.buckets.values():
            bucket.state.reached = None
        for unit in self._shard.tables.values():
            unit.reached = None

    def _reached(self, number: int, bucket: PlainBucket) -> Callable[[int, int, int], None]:
        def reached(version: int, first: int, stop: int) -> None:
            if version == self.step:
                self._take(number, bucket, first, stop)
                if not self._left:
                    self._end_complete()

        return reached

    def _table_reached(self, number: int, unit: TableState, version: int) -> None:
        if version == self.step:
            self._take_table(number, unit)
            if not self._left:
                self._end_complete()

    def _take_table(self, number: int, unit: TableState) -> None:
        unit.reached = None
        rows, gone = unit.rows.capture(self.step, self.since)
        gone = unit.cut.ids_at(unit.shard, gone).view(np.int64)
        self._tables[number] = TableCapture(rows, unit.rows.marks() | {GONE: gone}, unit.updates)
        self._left -= 1

    def _take(self, number: int, bucket: PlainBucket, first: int, stop: int) -> None:
        update = bucket.state.update
        views: dict[str, list[Array]] = {}
        for name, values in ((VALUE, update.values), *update.state.items()):
            found = views[name] = []
            for low, high, held, part, _ in values.pieces(first, stop):
                start = values.bounds[low - part]
                found.append(held.array[values.bounds[low] - start : values.bounds[high] - start])
                self._pins.append((Pin(held, part, high - low), high - low))
        if update.has_residual:
            views[OWED] = [update.residual(first, stop).copy()]
        self._taken.setdefault(number, []).append(_Captured(first, views, update.updates[first:stop].copy()))
        self._left -= stop - first


class TableCapture(NamedTuple):
    """A table at one version: its rows, what is known beside them, and the updates made."""

    rows: RowCapture
    marks: Columns
    updates: int


def _table_parts(unit: TableState, captured: TableCapture, there: OtherThread) -> Iterator[Part]:
    """What a shard has of a table, its rows block by block."""
    key, rows, columns = unit.spec.key, captured.rows, unit.rows.columns(np.empty(0, np.int64))
    for name, array in (captured.marks | {UPDATES: np.array([captured.updates])}).items():
        yield Part(name, key, 0, array.size, str(array.dtype), [array])
    widths = {name: int(np.prod(array.shape[1:])) for name, array in columns.items()}
    count = a_block(rows.left, sum(widths[name] * array.itemsize for name, array in columns.items()))
    blocks = _Blocks(unit, rows, count, there)
    for begin in range(0, rows.left, count):
        some = min(count, rows.left - begin)
        yield Part(ROWS, key, begin, some, "int64", blocks.array(begin, ROWS))
        for name, array in columns.items():
            yield Part(name, key, begin, some * widths[name], str(array.dtype), blocks.array(begin, name))


class _Blocks:
    """Blocks of a table's rows, each taken out when its first array is asked for."""

    def __init__(self, unit: TableState, rows: RowCapture, count: int, there: OtherThread) -> None:
        self._unit = unit
        self._rows = rows
        self._count = count
        self._there = there
        self._begin = -1
        self._columns: Columns = {}

    def array(self, begin: int, name: str) -> Iterator[Array]:
        """Of the block from that row on."""
        if begin != self._begin:
            self._begin, self._columns = begin, self._there.do(lambda: self._rows.take(self._count))
            ids = self._unit.cut.ids_at(self._unit.shard, self._columns[ROWS])
            self._columns[ROWS] = ids.view(np.int64)
        yield self._columns.pop(name)


class Captures:
    """The capture of a shard that is under way: there is one at a time. Belongs to the shard's thread."""

    def __init__(self, there: OtherThread) -> None:
        """`there`: that thread, for the others."""
        self._there = there
        self._open: Capture | None = None

    def begin(
        self,
        shard: JobShard,
        step: int,
        told: Callable[[Held | MissedError], None],
        *,
        without: Collection[str] = (),
        since: int | None = None,
    ) -> None:
        """Captures the shard at version `step`, `without` some keys; one that is not complete is dropped. `told` has to
        be quick; what it is given is to be released. `since` is of `Capture`."""
        before, self._open = self._open, None
        if before is not None:
            before.release()

        def complete(capture: Capture) -> None:
            self._open = None
            told(capture.held(self._there))

        try:
            capture = Capture(shard, step, complete, without=without, since=since)
        except MissedError as error:
            told(error)
        else:
            self._open = None if capture.is_complete else capture


class Held(NamedTuple):
    """What a process holds at one version. `parts` gives it, once, on any thread, until `release`. The loss scale is
    that of its step, where there is one. `since`: of tables it has only what has changed since that step."""

    parts: Callable[[], list[Part]]
    loss_scale: LossScale | None = None
    release: Callable[[], None] = lambda: None
    since: int | None = None


class Together:
    """What several parts of a process hold at one version, as one: `told`, which may be called on any thread, is given
    each of so many. One that was missed ends all of them."""

    def __init__(self, count: int, told: Callable[[Held | MissedError], None]) -> None:
        self._told = told
        self._left = list(range(count))
        self._found: list[Held | MissedError] = []

    def told(self, one: Held | MissedError) -> None:
        """One of them is there, or cannot be had."""
        self._found.append(one)
        if self._left.pop():  # Of all threads one takes the last, which is 0.
            return
        held = [each for each in self._found if isinstance(each, Held)]

        def release() -> None:
            for each in held:
                each.release()

        missed = next((each for each in self._found if isinstance(each, MissedError)), None)
        if missed is not None:
            release()
            self._told(missed)
            return
        scale = next((each.loss_scale for each in held if each.loss_scale is not None), None)
        since = next((each.since for each in held if each.since is not None), None)  # One of them has all tables.
        self._told(Held(lambda: [part for each in held for part in each.parts()], scale, release, since))


def saved(folder: str, name: str, held: Held, *, job: str, step: int) -> dict[str, Any]:
    """Writes what a process holds, and releases it. What is to be reported: the file's name, length and digest, or why
    there is none."""
    try:
        check_place(folder)
        file = write_file(folder, name, held.parts(), {"job": job, "step": str(step)})
    except (SnapshotError, StoreError, MemoryError) as error:
        return {"step": step, "error": str(error) or type(error).__name__}
    finally:
        held.release()
    done: dict[str, Any] = {"step": step, "file": msgspec.to_builtins(file), "since": held.since}
    if held.loss_scale is not None:
        done |= {"loss_scale": held.loss_scale.scale, "finite_steps": held.loss_scale.good}
    return done


class Span(NamedTuple):
    """A key's run of slices in a bucket: slices `first` to `stop` there are its slices from `number` on, and its
    elements from `start` on."""

    key: str
    first: int
    stop: int
    number: int
    start: int


def spans_of(shard: JobShard, bucket: PlainBucket) -> Iterator[Span]:
    """What a bucket has of each of its keys, in the order in which they lie there."""
    part, spec = bucket.state.spec.part, bucket.state.spec
    edges = [0, *(np.flatnonzero(np.diff(part.places)) + 1).tolist(), len(part)]
    for first, stop in pairwise(edges):
        if first < stop:
            place, index = int(part.places[first]), int(part.indices[first])
            key = spec.keys[place]
            yield Span(key.key, first, stop, index, shard.cuts[place].start(index) // np.dtype(key.dtype).itemsize)


def _cut(bucket: PlainBucket, captured: list[_Captured], array: str, span: Span) -> Iterator[Array]:
    """The elements of a span, in the pieces in which they were captured."""
    bounds = bucket.state.bounds
    low, high = int(bounds[span.first]), int(bounds[span.stop])
    for one in captured:
        at = int(bounds[one.first])
        for view in one.views[array]:
            begin, end = max(low, at), min(high, at + len(view))
            if begin < end:
                yield view[begin - at : end - at]
            at += len(view)


def restore(shard: JobShard, snapshot: Snapshot) -> None:
    """Has a job that nobody has pushed to go on from a snapshot. Raises SnapshotError, MemoryError."""
    step = snapshot.step
    with SnapshotReader(snapshot) as reader:
        for bucket in shard.buckets.values():
            _restore_bucket(shard, bucket, step, reader)
        for unit in shard.tables.values():
            _restore_table(unit, step, reader)
    if shard.gate is not None:
        shard.gate.begin_at(step, loss_scale_of(snapshot))


def _restore_bucket(shard: JobShard, bucket: PlainBucket, step: int, reader: SnapshotReader) -> None:
    state = bucket.state
    dtype = state.update.values.dtype
    for span in spans_of(shard, bucket):
        stop = span.start + int(state.bounds[span.stop] - state.bounds[span.first])
        arrays = {
            name: Segment(span.first, span.stop, reader.read(name, span.key, span.start, stop, dtype))
            for name in (VALUE, *state.spec.state)
        }
        last = span.number + span.stop - span.first
        updates = reader.read(UPDATES, span.key, span.number, last, np.dtype(np.int64))
        owed = None
        if state.update.has_residual and OWED in reader.arrays(span.key):
            owed = reader.read(OWED, span.key, span.start, stop, dtype)
        state.begin_at(step, arrays.pop(VALUE), arrays, updates, owed)


def _restore_table(unit: TableState, step: int, reader: SnapshotReader) -> None:
    """Its rows may have been on any shards."""
    key, cut, held = unit.spec.key, unit.cut, unit.rows
    each = {
        name: reader.each(name, key, array.dtype)
        for name, array in (held.marks() | {UPDATES: np.zeros(1, np.int64)}).items()
    }
    updates = each.pop(UPDATES)

    def is_here(ids: Array) -> Array:
        return cut.ids_on(unit.shard, ids)

    if not updates or any(len(found) != len(updates) for found in each.values()):
        raise SnapshotError(f"{reader.folder} has no table {key!r}, or not all that is known of it")
    unit.begin_at(step, int(updates[0][0]))
    held.begin_with([dict(zip(each, marks, strict=True)) for marks in zip(*each.values(), strict=True)], is_here)
    like = held.columns(np.empty(0, np.int64))
    for ids, columns in reader.rows(key, is_here, {name: array.dtype for name, array in like.items()}):
        if not columns:
            held.remove(cut.places_of(ids.view(cut.id_dtype)))
            continue
        shaped = {name: columns[name].reshape(-1, *array.shape[1:]) for name, array in like.items()}
        held.restore(cut.places_of(ids.view(cut.id_dtype)), shaped)
